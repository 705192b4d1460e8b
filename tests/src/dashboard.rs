//! The Grafana dashboard of deploy/: its queries, and a picture of what they find.

mod graph;

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::Value;

use crate::deployment::deploy;
use graph::{Area, GREY, text};

/// The time between two points of a line, in seconds.
pub const STEP: f64 = 1.0;

/// A query of a panel.
#[derive(Clone, Debug)]
pub struct Query {
    /// With values for the dashboard's variables.
    pub expr: String,
    legend: String,
}

/// A graph of the dashboard.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Its title.
    pub title: String,
    /// All of them are drawn into one graph.
    pub queries: Vec<Query>,
    place: Area,
    /// Grafana's name of the unit.
    unit: String,
    /// The top of the axis, if it is fixed.
    top: Option<f64>,
    is_stacked: bool,
}

/// A line of a graph.
#[derive(Clone, Debug)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Seconds since 1970, and values.
    pub points: Vec<(f64, f64)>,
}

/// The whole dashboard.
#[derive(Clone, Debug)]
pub struct Dashboard {
    /// Its graphs.
    pub panels: Vec<Panel>,
    /// Titles between the graphs.
    headings: Vec<(Area, String)>,
}

impl Query {
    /// The labels that the legend shows.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.legend.split("{{").skip(1).filter_map(|it| Some(it.split_once("}}")?.0))
    }

    /// What Prometheus answers to the query over a range.
    #[must_use]
    pub fn series(&self, found: &[Value]) -> Vec<Series> {
        let number = |value: &Value| {
            let number = value.as_str().and_then(|text| text.parse::<f64>().ok());
            number.filter(|number| number.is_finite())
        };
        let point = |pair: &Value| Some((pair[0].as_f64()?, number(&pair[1])?));
        let one = |found: &Value| Series {
            name: self.name(&found["metric"]),
            points: found["values"].as_array().into_iter().flatten().filter_map(point).collect(),
        };
        found.iter().map(one).collect()
    }

    fn name(&self, metric: &Value) -> String {
        self.labels().fold(self.legend.clone(), |name, label| {
            name.replace(&format!("{{{{{label}}}}}"), metric[label].as_str().unwrap_or_default())
        })
    }
}

impl Dashboard {
    /// Reads deploy/grafana/topo-lb.json, with these values for its variables.
    ///
    /// # Errors
    /// It has another form, or further variables.
    pub fn read(variables: &[(&str, &str)]) -> Result<Self> {
        let content = fs::read_to_string(deploy("grafana/topo-lb.json"))?;
        let dashboard: Value = serde_json::from_str(&content)?;
        let (mut panels, mut headings) = (Vec::new(), Vec::new());
        for panel in dashboard["panels"].as_array().context("the dashboard has panels")? {
            let place = Area::on_grid(&panel["gridPos"]).context("a panel has a place")?;
            let title = panel["title"].as_str().context("a panel has a title")?.to_owned();
            if panel["type"] == "row" {
                headings.push((place, title));
                continue;
            }
            let targets = panel["targets"].as_array().into_iter().flatten();
            let queries = targets.map(|target| {
                let expr = target["expr"].as_str().context("a query")?.to_owned();
                let expr = variables.iter().fold(expr, |expr, (name, it)| expr.replace(name, it));
                ensure!(!expr.contains('$'), "an unknown variable: {expr}");
                let legend = target["legendFormat"].as_str().context("a legend")?.to_owned();
                Ok(Query { expr, legend })
            });
            let defaults = &panel["fieldConfig"]["defaults"];
            panels.push(Panel {
                title,
                queries: queries.collect::<Result<_>>()?,
                place,
                unit: defaults["unit"].as_str().context("a panel has a unit")?.to_owned(),
                top: defaults["max"].as_f64(),
                is_stacked: defaults["custom"]["stacking"]["mode"] == "normal",
            });
        }
        Ok(Self { panels, headings })
    }

    /// A picture as SVG. `found` has the lines of each panel in this time, in seconds since 1970.
    #[must_use]
    pub fn picture(&self, found: &[Vec<Series>], (begin, end): (f64, f64)) -> String {
        let size = |of: fn(&Area) -> f64| {
            let places = self.panels.iter().map(|panel| &panel.place);
            places.map(of).fold(0.0, f64::max) + graph::MARGIN
        };
        let (width, height) = (size(Area::right), size(Area::bottom));
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-size=\"11\" \
             font-family=\"system-ui, 'Helvetica Neue', Arial, sans-serif\">\n\
             <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#eef0f3\"/>\n"
        );
        for (place, title) in &self.headings {
            let (x, y) = (place.x + 4.0, place.bottom() - 7.0);
            text(&mut svg, (x, y), "font-size=\"14\" font-weight=\"600\"", GREY, title);
        }
        for (panel, series) in self.panels.iter().zip(found) {
            panel.draw(&mut svg, series, (begin, end));
        }
        let _ = writeln!(svg, "</svg>");
        svg
    }
}

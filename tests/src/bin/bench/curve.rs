//! Curves over the sizes: their data, their growth, their pictures.

use std::fmt::Write as _;

use anyhow::{Result, anyhow};
use plotters::prelude::{
    ChartBuilder, Circle, Color as _, IntoDrawingArea as _, IntoLogRange as _, LineSeries,
    PathElement, RGBColor, SVGBackend, SeriesLabelPosition, WHITE,
};

use crate::kube_proxy;
use crate::result::Figure;

/// One picture.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// The picture's name, without `.svg`.
    pub(crate) file: &'static str,
    pub(crate) title: &'static str,
    along: &'static str,
    up: &'static str,
    lines: Vec<Line>,
}

#[derive(Clone, Debug)]
struct Line {
    name: String,
    /// Ascending in x.
    points: Vec<(f64, f64)>,
}

/// All curves with at least two points among the figures.
pub(crate) fn curves(figures: &[Figure]) -> Vec<Curve> {
    let tail = |figure: &Figure| Figure { median: figure.p99, ..figure.clone() };
    let tails: Vec<Figure> = figures.iter().map(tail).collect();
    let mut curves = vec![
        exchanges(figures),
        beside_kube_proxy(figures),
        Curve {
            file: "programming",
            title: "From the API server to the maps",
            along: "Services of 10 endpoints",
            up: "seconds",
            lines: vec![
                sized(figures, "program_seconds", "from the list to the last map written"),
                sized(figures, "start_seconds", "from the start of the agent"),
                sized(figures, "restart_seconds", "a restart with nothing to do"),
            ],
        },
        Curve {
            file: "event",
            title: "From a watch event to the map, at 100 changes a second",
            along: "Services of 10 endpoints",
            up: "ms",
            lines: vec![
                sized(figures, "event_to_map_p99_ms", "median"),
                sized(&tails, "event_to_map_p99_ms", "p99"),
            ],
        },
        Curve {
            file: "memory",
            title: "Resident memory of the agent",
            along: "endpoints in the cluster",
            up: "MB",
            lines: vec![line(figures, "rss_mb", "endpoints", "resident", |_| true)],
        },
        Curve {
            file: "rollout",
            title: "One event of a rolling update, on one of 5,000 nodes",
            along: "pods of the Service",
            up: "ms",
            lines: vec![line(figures, "rollout_event_ms", "pods", "computing", |_| true)],
        },
    ];
    for curve in &mut curves {
        curve.lines.retain(|line| line.points.len() > 1);
    }
    curves.retain(|curve| !curve.lines.is_empty());
    curves
}

fn exchanges(figures: &[Figure]) -> Curve {
    Curve {
        file: "connect",
        title: "An exchange through the ClusterIP ÷ direct",
        along: "Services",
        up: "ratio",
        lines: vec![
            ratio(figures, "connect_ratio", "topo-lb", "one Service"),
            ratio(figures, "connect_ratio", "topo-lb", "any Service"),
            ratio(figures, "connect_ratio", "nftables", "one Service"),
            ratio(figures, "connect_ratio", "nftables", "any Service"),
        ],
    }
}

/// A separate picture: on its scale the other curves are flat.
fn beside_kube_proxy(figures: &[Figure]) -> Curve {
    let lines = |proxy| {
        // Without *one Service*: its figure depends on its random place among kube-proxy's rules.
        let service = ratio(figures, "connect_ratio", proxy, "any Service");
        [service, ratio(figures, "other_traffic_ratio", proxy, "direct")]
    };
    let is_measured = figures.iter().any(|figure| figure.word("proxy") == Some(kube_proxy::NAME));
    Curve {
        file: "kube-proxy",
        title: "An exchange beside kube-proxy 1.20 ÷ direct without any proxy",
        along: "Services",
        up: "ratio",
        lines: if is_measured {
            [lines("topo-lb"), lines(kube_proxy::NAME)].concat()
        } else {
            vec![]
        },
    }
}

fn ratio(figures: &[Figure], name: &str, proxy: &str, traffic: &str) -> Line {
    line(figures, name, "services", &format!("{proxy}, {traffic}"), |figure| {
        figure.word("proxy") == Some(proxy)
            && figure.word("traffic") == Some(traffic)
            && figure.word("reverse") != Some("off")
    })
}

/// Only sizes with ten endpoints per Service, so that a curve varies one thing.
fn is_of_ten(figure: &Figure) -> bool {
    match (figure.number("services"), figure.number("endpoints")) {
        (Some(services), Some(endpoints)) => endpoints <= services * 10.0,
        _ => false,
    }
}

fn sized(figures: &[Figure], name: &str, label: &str) -> Line {
    line(figures, name, "services", label, is_of_ten)
}

fn line(
    figures: &[Figure],
    name: &str,
    along: &str,
    label: &str,
    is_of_it: impl Fn(&Figure) -> bool,
) -> Line {
    let of_it = figures.iter().filter(|figure| figure.name == name && is_of_it(figure));
    let mut points: Vec<_> =
        of_it.filter_map(|figure| Some((figure.number(along)?, figure.median))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Line { name: label.into(), points }
}

/// The exponent p in y ~ x^p, from the first and the last point.
fn order(points: &[(f64, f64)]) -> Option<f64> {
    let (first, last) = (points.first()?, points.last()?);
    let order = (last.1 / first.1).ln() / (last.0 / first.0).ln();
    order.is_finite().then_some(order)
}

impl Curve {
    /// The growth of each line, as sentences.
    pub(crate) fn sentences(&self) -> String {
        let mut text = String::new();
        for line in &self.lines {
            let Some(order) = order(&line.points) else { continue };
            // Turns -0.0 into 0.0.
            let order = (order * 100.0).round() / 100.0 + 0.0;
            let word = match order {
                ..-0.1 => "falls",
                -0.1..0.1 => "is constant",
                0.1..0.9 => "grows more slowly than linearly",
                0.9..1.1 => "grows linearly",
                _ => "grows faster than linearly",
            };
            let _ = writeln!(
                text,
                "- *{}* {word}: as the {order:.2}th power of the number of {}, between {} and {}.",
                line.name,
                self.along,
                line.points[0].0,
                line.points[line.points.len() - 1].0
            );
        }
        text
    }

    pub(crate) fn svg(&self) -> Result<String> {
        let mut text = String::new();
        self.draw(&mut text).map_err(|error| anyhow!("{} cannot be drawn: {error}", self.file))?;
        Ok(text)
    }

    fn draw(&self, text: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        const COLOURS: [RGBColor; 4] = [
            RGBColor(0x1b, 0x6f, 0xa8),
            RGBColor(0xd9, 0x5f, 0x0e),
            RGBColor(0x4d, 0x92, 0x21),
            RGBColor(0x88, 0x41, 0x9d),
        ];
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let bound = |of: fn(&(f64, f64)) -> f64, pick: fn(f64, f64) -> f64, start: f64| {
            points().map(of).fold(start, pick)
        };
        let (left, right) =
            (bound(|it| it.0, f64::min, f64::MAX), bound(|it| it.0, f64::max, f64::MIN));
        let top = bound(|it| it.1, f64::max, f64::MIN) * 1.1;
        let root = SVGBackend::with_string(text, (720, 400)).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d((left..right * 1.02).log_scale(), 0.0..top)?;
        chart
            .configure_mesh()
            .x_desc(self.along)
            .y_desc(self.up)
            .x_label_formatter(&|value| format!("{value:.0}"))
            .draw()?;
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), colour.stroke_width(2)))?
                .label(&line.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2))
                });
            let dots = line.points.iter().map(|&point| Circle::new(point, 3, colour.filled()));
            chart.draw_series(dots)?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        root.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(services: u32, value: f64) -> Figure {
        Figure::single("program_seconds", "s", value)
            .with("services", services)
            .with("endpoints", services * 10)
    }

    #[test]
    fn growth_is_told_by_its_order() {
        assert_eq!(order(&[(10.0, 2.0), (1_000.0, 2.0)]), Some(0.0));
        assert!((order(&[(10.0, 1.0), (1_000.0, 100.0)]).unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(order(&[(10.0, 1.0)]), None);
        assert_eq!(order(&[]), None);
    }

    #[test]
    fn a_curve_has_a_picture_and_a_sentence() {
        let curves = curves(&[figure(1_000, 0.1), figure(10, 0.001)]);
        let [curve] = curves.as_slice() else { panic!("{curves:?}") };
        assert!(curve.sentences().contains("grows linearly"), "{}", curve.sentences());
        let svg = curve.svg().unwrap();
        assert!(svg.starts_with("<svg") && svg.contains("polyline"), "{svg}");
    }
}

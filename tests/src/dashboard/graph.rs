//! A graph over time as SVG: title, axes, lines or stacked areas, legend.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::{Panel, STEP, Series};

/// Around every panel, in units of the picture.
pub(super) const MARGIN: f64 = 8.0;
/// A cell of Grafana's grid.
const CELL: (f64, f64) = (50.0, 27.0);
/// A line of the legend, and how wide a letter is at most.
const LEGEND: f64 = 15.0;
const LETTER: f64 = 6.8;
/// Most lines of a legend.
const LINES: usize = 3;

pub(super) const GREY: &str = "#5b6570";
const BLACK: &str = "#1d2329";
const COLOURS: [&str; 10] = [
    "#2a7ab0", "#e0771b", "#3d9140", "#c0392b", "#8153a8", "#17a2a2", "#c9a300", "#d1589a",
    "#6b7785", "#8a6d3b",
];

/// Where something is in the picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    width: f64,
    height: f64,
}

impl Area {
    /// From `gridPos`.
    pub(super) fn on_grid(grid: &Value) -> Option<Self> {
        let [x, y, width, height] = ["x", "y", "w", "h"].map(|name| grid[name].as_f64());
        Some(Self {
            x: x? * CELL.0 + MARGIN,
            y: y? * CELL.1 + MARGIN,
            width: width? * CELL.0 - MARGIN,
            height: height? * CELL.1 - MARGIN,
        })
    }

    pub(super) fn right(&self) -> f64 {
        self.x + self.width
    }

    pub(super) fn bottom(&self) -> f64 {
        self.y + self.height
    }
}

/// Writes a text, whatever is in it.
pub(super) fn text(svg: &mut String, (x, y): (f64, f64), how: &str, fill: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    // Writing to a text cannot fail.
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" {how} fill=\"{fill}\">{text}</text>");
}

/// A graph in its place: what is drawn is at times and values.
struct Plot {
    place: Area,
    times: (f64, f64),
    /// The value at the top, and between two lines of the grid.
    top: f64,
    step: f64,
}

impl Plot {
    fn across(&self, at: f64) -> f64 {
        let (begin, end) = self.times;
        self.place.x + self.place.width * (at - begin) / (end - begin)
    }

    fn up(&self, value: f64) -> f64 {
        self.place.bottom() - self.place.height * value / self.top
    }

    fn axes(&self, svg: &mut String, unit: &str) {
        let Area { x, y, .. } = self.place;
        for number in 0..=(self.top / self.step).round() as u32 {
            let value = f64::from(number) * self.step;
            let up = self.up(value);
            rule(svg, (x, up), (self.place.right(), up));
            text(svg, (x - 6.0, up + 4.0), "text-anchor=\"end\"", GREY, &amount(value, unit));
        }
        let (begin, end) = self.times;
        let step = round_step((end - begin) / 6.0);
        for number in 0..=((end - begin) / step) as u32 {
            let ago = f64::from(number) * step;
            let at = self.across(end - ago);
            rule(svg, (at, y), (at, self.place.bottom()));
            let name = if number == 0 { "now".to_owned() } else { format!("{ago} s ago") };
            let below = (at, self.place.bottom() + 16.0);
            text(svg, below, "text-anchor=\"middle\"", GREY, &name);
        }
    }

    fn curve(&self, svg: &mut String, points: &[Point], colour: &str, is_filled: bool) {
        let place = |at, value| format!("{:.1},{:.1} ", self.across(at), self.up(value));
        for run in points.chunk_by(|one, next| next.at - one.at < 1.5 * STEP) {
            let upper: String = run.iter().map(|it| place(it.at, it.upper)).collect();
            if is_filled {
                let lower: String = run.iter().rev().map(|it| place(it.at, it.lower)).collect();
                let _ = writeln!(
                    svg,
                    "<polygon points=\"{upper}{}\" fill=\"{colour}\" opacity=\"0.4\"/>",
                    lower.trim_end()
                );
            }
            let _ = writeln!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.6\" \
                 stroke-linejoin=\"round\"/>",
                upper.trim_end()
            );
        }
    }
}

impl Panel {
    pub(super) fn draw(&self, svg: &mut String, series: &[Series], times: (f64, f64)) {
        let Area { x, y, width, height } = self.place;
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" rx=\"4\" fill=\"#ffffff\" \
             stroke=\"#d9dde2\"/>"
        );
        let how = "font-size=\"13\" font-weight=\"600\"";
        text(svg, (x + 10.0, y + 19.0), how, BLACK, &self.title);
        let legend = self.legend(svg, series);

        let curves = curves(series, self.is_stacked);
        let largest = curves.iter().flatten().map(|it| it.upper).fold(0.0, f64::max);
        let step = self.top.map_or_else(|| round_step(largest / 4.0), |top| top / 4.0);
        let plot = Plot {
            place: Area {
                x: x + 62.0,
                y: y + 32.0,
                width: width - 86.0,
                height: height - 66.0 - legend,
            },
            times,
            top: self.top.unwrap_or_else(|| step * (largest / step).ceil().max(1.0)),
            step,
        };
        plot.axes(svg, &self.unit);
        for (points, colour) in curves.iter().zip(COLOURS.into_iter().cycle()) {
            plot.curve(svg, points, colour, self.is_stacked);
        }
    }

    /// Draws the names of the curves at the bottom. Returns the height that they take.
    fn legend(&self, svg: &mut String, series: &[Series]) -> f64 {
        let (left, right) = (self.place.x + 10.0, self.place.right() - 10.0);
        let long = |name: &str| 28.0 + LETTER * name.chars().count() as f64;
        let (mut names, mut x, mut line) = (Vec::new(), left, 0);
        for (number, Series { name, .. }) in series.iter().enumerate() {
            if x > left && x + long(name) > right {
                (x, line) = (left, line + 1);
            }
            if line == LINES {
                let more = format!("and {} more", series.len() - number);
                if let Some(last) = names.last_mut() {
                    *last = (right - long(&more), LINES - 1, more, GREY);
                }
                break;
            }
            names.push((x, line, name.clone(), COLOURS[number % COLOURS.len()]));
            x += long(name);
        }
        let lines = names.last().map_or(0, |(_, line, ..)| line + 1);
        for (x, line, name, colour) in names {
            let y = self.place.bottom() - 9.0 - LEGEND * (lines - line - 1) as f64;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{:.1}\" width=\"12\" height=\"3\" fill=\"{colour}\"/>",
                y - 5.0
            );
            text(svg, (x + 16.0, y), "", BLACK, &name);
        }
        LEGEND * lines as f64
    }
}

fn rule(svg: &mut String, from: (f64, f64), to: (f64, f64)) {
    let _ = writeln!(
        svg,
        "<path d=\"M{:.1},{:.1}L{:.1},{:.1}\" stroke=\"#e6e9ed\"/>",
        from.0, from.1, to.0, to.1
    );
}

/// A moment of a curve: its value, and where the area below it begins.
struct Point {
    at: f64,
    lower: f64,
    upper: f64,
}

/// If they are stacked, each series begins where the one before it ends.
fn curves(series: &[Series], are_stacked: bool) -> Vec<Vec<Point>> {
    let mut sums: BTreeMap<u64, f64> = BTreeMap::new();
    let mut point = |&(at, value): &(f64, f64)| {
        let sum = sums.entry(at as u64).or_default();
        let lower = if are_stacked { *sum } else { 0.0 };
        *sum += value;
        Point { at, lower, upper: lower + value }
    };
    series.iter().map(|series| series.points.iter().map(&mut point).collect()).collect()
}

/// A step of an axis: 1, 2 or 5 times a power of ten.
fn round_step(least: f64) -> f64 {
    if least <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(least.log10().floor());
    let times = [1.0, 2.0, 5.0].into_iter().find(|times| least <= power * times * 1.000_001);
    power * times.unwrap_or(10.0)
}

/// A value of an axis, in one of Grafana's units.
fn amount(value: f64, unit: &str) -> String {
    let scaled = |value: f64, names: [&str; 4]| {
        let (mut value, mut place) = (value, 0);
        while value >= 1000.0 && place < names.len() - 1 {
            value /= 1000.0;
            place += 1;
        }
        format!("{}{}", round(value), names[place])
    };
    match unit {
        "percentunit" => format!("{} %", round(value * 100.0)),
        "Bps" => scaled(value, [" B/s", " kB/s", " MB/s", " GB/s"]),
        "cps" => scaled(value, [" c/s", "k c/s", "M c/s", "G c/s"]),
        "pps" => scaled(value, [" p/s", "k p/s", "M p/s", "G p/s"]),
        "s" if value > 0.0 && value < 1.0 => scaled(value * 1e6, [" µs", " ms", " s", " s"]),
        "s" => format!("{} s", round(value)),
        _ => scaled(value, ["", "k", "M", "G"]),
    }
}

/// At most three digits that say something.
fn round(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { format!("{value:.2e}").parse().unwrap_or(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_steps_and_its_unit() {
        for (least, step) in [(0.0, 1.0), (0.7, 1.0), (12.0, 20.0), (0.3, 0.5), (5.0, 5.0)] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
        for (value, unit, text) in [
            (0.25, "percentunit", "25 %"),
            (20_000.0, "Bps", "20 kB/s"),
            (0.0005, "s", "500 µs"),
            (0.02, "s", "20 ms"),
            (0.0, "s", "0 s"),
            (1.5, "cps", "1.5 c/s"),
            (3.0, "short", "3"),
        ] {
            assert_eq!(amount(value, unit), text);
        }
    }
}

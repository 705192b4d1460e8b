//! The bench's results: named figures, and whether they meet their targets.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::machine::Machine;
use crate::sample::Sample;

/// All results of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) machine: Machine,
    /// Later runs of some parts, whose figures have replaced those of this one; the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) later: Vec<Later>,
    pub(crate) results: Vec<Figure>,
}

impl Report {
    /// The form of the file and of `--json`; equal reports give equal bytes.
    pub(crate) fn json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).context("a report is always JSON")?;
        text.push('\n');
        Ok(text)
    }

    /// Replaces the figures of this report that a later run has measured again.
    pub(crate) fn replace(&mut self, other: Self) {
        let names: BTreeSet<String> = other.results.iter().map(|it| it.name.clone()).collect();
        self.results.retain(|figure| !names.contains(&figure.name));
        self.results.extend(other.results);
        for later in &mut self.later {
            later.names.retain(|name| !names.contains(name));
        }
        self.later.retain(|later| !later.names.is_empty());
        self.later.push(Later { machine: other.machine, names });
    }

    /// Reads what [`json`](Self::json) returned.
    pub(crate) fn read(json: &str) -> Result<Self> {
        serde_json::from_str(json).context(
            "this is no report of the bench, as --json prints it and --write-docs keeps it",
        )
    }
}

/// A run of some parts, after the whole one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Later {
    pub(crate) machine: Machine,
    pub(crate) names: BTreeSet<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    /// The circumstances of the measurement.
    pub(crate) params: BTreeMap<String, Value>,
    pub(crate) median: f64,
    pub(crate) p99: f64,
    /// First and third quartile.
    pub(crate) quartiles: (f64, f64),
    /// `us`, `ns`, `s`, `ms`, `MB`, `ratio`, `writes`, …
    pub(crate) unit: String,
    /// The promised bound.
    pub(crate) target: Option<f64>,
    /// Whether the bound is a lower one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_least: bool,
    pub(crate) met: Option<bool>,
}

impl Figure {
    pub(crate) fn new(name: &str, unit: &str, sample: &Sample) -> Self {
        let (low, high) = sample.quartiles();
        Self {
            name: name.into(),
            params: BTreeMap::new(),
            median: rounded(sample.median()),
            p99: rounded(sample.p99()),
            quartiles: (rounded(low), rounded(high)),
            unit: unit.into(),
            target: None,
            is_least: false,
            met: None,
        }
    }

    /// A figure of one value.
    pub(crate) fn single(name: &str, unit: &str, value: f64) -> Self {
        let mut sample = Sample::default();
        sample.add(value);
        Self::new(name, unit, &sample)
    }

    pub(crate) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.params.insert(name.into(), value.into());
        self
    }

    /// Promises a median of at most `target`.
    pub(crate) fn at_most(self, target: f64) -> Self {
        let value = self.median;
        self.bounded(value, target)
    }

    /// Promises a median of at least `target`.
    pub(crate) fn at_least(self, target: f64) -> Self {
        Self { target: Some(target), is_least: true, met: Some(self.median >= target), ..self }
    }

    /// Promises a 99th percentile of at most `target`.
    pub(crate) fn p99_at_most(self, target: f64) -> Self {
        let value = self.p99;
        self.bounded(value, target)
    }

    fn bounded(mut self, value: f64, target: f64) -> Self {
        self.target = Some(target);
        self.met = Some(value <= target);
        self
    }

    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        self.params.get(name)?.as_f64()
    }

    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.params.get(name)?.as_str()
    }

    /// `services=10000 path=direct`.
    pub(crate) fn circumstances(&self) -> String {
        let one = |(name, value): (&String, &Value)| match value {
            Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        };
        self.params.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

/// Four significant digits: repeated runs differ by more. Targets are compared with this value.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Rounds to the digits that matter to a reader.
pub(crate) fn readable(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => {
            let digits = format!("{value:.0}");
            grouped(&digits)
        }
        size if size >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

/// 12345 as 12,345.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The cells of a table: a header, then one row per figure.
pub(crate) fn rows(figures: &[Figure]) -> Vec<[String; 7]> {
    let header = ["what", "where", "median", "p99", "half between", "unit", "target"];
    let mut rows = vec![header.map(str::to_owned)];
    for figure in figures {
        let (low, high) = figure.quartiles;
        let target = match (figure.target, figure.met) {
            (Some(target), Some(is_met)) => {
                let bound = if figure.is_least { "≥" } else { "≤" };
                let word = if is_met { "met" } else { "MISSED" };
                format!("{bound} {}: {word}", readable(target))
            }
            _ => String::new(),
        };
        rows.push([
            figure.name.clone(),
            figure.circumstances(),
            readable(figure.median),
            readable(figure.p99),
            format!("{}–{}", readable(low), readable(high)),
            figure.unit.clone(),
            target,
        ]);
    }
    rows
}

/// The figures as a text table.
pub(crate) fn table(figures: &[Figure]) -> String {
    let mut rows = rows(figures).into_iter();
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if let Some(header) = rows.next() {
        table.set_header(header.map(|name| name.to_uppercase()));
    }
    for column in table.column_iter_mut().skip(2).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(rows);
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_long_as_they_mean_something() {
        for (value, text) in [
            (0.0, "0"),
            (1.0312, "1.031"),
            (26.04, "26.0"),
            (1234.6, "1,235"),
            (50_000.0, "50,000"),
        ] {
            assert_eq!(readable(value), text);
        }
    }

    #[test]
    fn a_figure_has_four_digits_wherever_it_is_told() {
        let mut sample = Sample::default();
        sample.extend([1.030_04, 1.030_04, 123_456.0, 0.000_123_456]);
        let figure = Figure::new("a", "ratio", &sample).at_most(1.03);
        assert_eq!((figure.median, figure.p99, figure.met), (1.03, 123_500.0, Some(true)));
        assert_eq!(rounded(0.000_123_456), 0.000_123_5);
        assert_eq!(rounded(0.0), 0.0);
    }

    #[test]
    fn a_report_that_is_read_is_the_one_that_was_written() {
        let figure = Figure::single("a", "us", 26.049).with("services", 10).with("proxy", "x");
        let report =
            Report { machine: Machine::describe("full"), later: Vec::new(), results: vec![figure] };
        let text = report.json().unwrap();
        assert_eq!(Report::read(&text).unwrap().json().unwrap(), text);
        assert!(text.contains("\"median\": 26.05,"), "{text}");
        let error = format!("{:#}", Report::read("{}").unwrap_err());
        assert!(error.contains("no report of the bench") && error.contains("machine"), "{error}");
    }

    #[test]
    fn a_later_run_replaces_its_own_figures() {
        let report = |name: &str, value| Report {
            machine: Machine::describe("full"),
            later: Vec::new(),
            results: vec![Figure::single(name, "us", value), Figure::single("both", "us", value)],
        };
        let mut first = report("first", 1.0);
        first.replace(report("later", 2.0));
        let found = first.results.iter().map(|it| (it.name.as_str(), it.median));
        assert_eq!(found.collect::<Vec<_>>(), [("first", 1.0), ("later", 2.0), ("both", 2.0)]);
        first.replace(report("last", 3.0));
        let told = first.later.iter().map(|run| run.names.iter().map(String::as_str).collect());
        assert_eq!(told.collect::<Vec<Vec<_>>>(), [vec!["later"], vec!["both", "last"]]);
        // Measured again, a run takes the place of the one before.
        first.replace(report("last", 4.0));
        assert_eq!((first.later.len(), first.results.len()), (2, 4));
    }

    #[test]
    fn a_target_is_met_or_missed_by_the_value_that_it_is_about() {
        let mut sample = Sample::default();
        sample.extend([1.0, 1.0, 9.0]);
        assert_eq!(Figure::new("a", "ms", &sample).at_most(1.0).met, Some(true));
        assert_eq!(Figure::new("a", "ms", &sample).p99_at_most(1.0).met, Some(false));
        assert_eq!(Figure::new("a", "ms", &sample).met, None);
        let least = Figure::new("a", "ratio", &sample).at_least(1.5);
        assert_eq!(rows(&[least])[1][6], "≥ 1.500: MISSED");
    }
}

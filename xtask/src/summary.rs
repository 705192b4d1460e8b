//! The table at the end of `cargo xtask test`.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::progress::{DIM, GREEN, RED, YELLOW, clock, paint};

/// How a stage ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Passed, perhaps with a remark.
    Passed(Option<String>),
    /// Nothing failed, but a part was not checked.
    Unchecked(String),
    /// Nothing failed, and a part has nothing to be checked against yet. No machine could check it, so
    /// it does not fail a strict run.
    NothingToCheck(String),
    Failed,
    /// An earlier stage failed.
    NotRun,
}

/// What suites say that they could not check on this machine, in their output: each sentence once.
pub(crate) fn unchecked<'a>(outputs: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let lines = outputs.into_iter().flat_map(str::lines);
    let all: BTreeSet<&str> =
        lines.filter_map(|line| line.trim().strip_prefix("NOT checked: ")).collect();
    let all: Vec<&str> = all.into_iter().collect();
    (!all.is_empty()).then(|| format!("NOT checked: {}", all.join("; ")))
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) title: String,
    pub(crate) outcome: Outcome,
    pub(crate) elapsed: Duration,
}

pub(crate) fn table(rows: &[Row]) -> Vec<String> {
    let titles = rows.iter().map(|row| row.title.chars().count());
    let titles = titles.max().unwrap_or(0);
    let times: Vec<String> = rows
        .iter()
        .map(|row| if row.outcome == Outcome::NotRun { "–".to_owned() } else { clock(row.elapsed) })
        .collect();
    let widest = times.iter().map(|time| time.chars().count()).max().unwrap_or(0);
    rows.iter()
        .zip(&times)
        .map(|(row, time)| {
            let (colour, mark, remark) = match &row.outcome {
                Outcome::Passed(None) => (GREEN, "✓", ""),
                Outcome::Passed(Some(remark)) => (YELLOW, "✓", remark.as_str()),
                Outcome::Unchecked(what) | Outcome::NothingToCheck(what) => {
                    (YELLOW, "!", what.as_str())
                }
                Outcome::Failed => (RED, "✗", "failed"),
                Outcome::NotRun => (DIM, "–", "not run"),
            };
            let mark = paint(colour, mark);
            let line = format!("{mark} {:<titles$}  {time:>widest$}  {remark}", row.title);
            line.trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_checked_is_said_once() {
        let outputs = [
            "test a ... NOT checked: b\nNOT checked: one\n  ok\n",
            "NOT checked: two\nNOT checked: one\n",
        ];
        assert_eq!(unchecked(outputs).as_deref(), Some("NOT checked: one; two"));
        assert_eq!(unchecked(["test a ... ok\n"]), None);
    }

    #[test]
    fn every_stage_has_a_line_and_columns_align() {
        let row = |title: &str, outcome, seconds| Row {
            title: title.to_owned(),
            outcome,
            elapsed: Duration::from_secs(seconds),
        };
        let rows = [
            row("set-up", Outcome::Passed(None), 1),
            row("dependencies", Outcome::Passed(Some("not all".to_owned())), 75),
            row("advisories", Outcome::Unchecked("NOT checked".to_owned()), 2),
            row("suites", Outcome::NothingToCheck("no release".to_owned()), 3),
            row("unit tests", Outcome::Failed, 12),
            row("lab", Outcome::NotRun, 0),
        ];
        let expected = "\
✓ set-up             1.0 s
✓ dependencies  1 min 15 s  not all
! advisories         2.0 s  NOT checked
! suites             3.0 s  no release
✗ unit tests        12.0 s  failed
– lab                    –  not run";
        let expected: Vec<&str> = expected.lines().collect();
        let table = table(&rows);
        let plain = table.iter().map(|line| anstream::adapter::strip_str(line).to_string());
        assert_eq!(plain.collect::<Vec<_>>(), expected);
    }
}

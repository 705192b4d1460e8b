//! Specs that cannot run here, and specs to which topo-lb gives another answer on purpose, with reasons.

use anyhow::{Context as _, Result};
use regex::Regex;

/// The lists; the first line of each says what is in a line.
const SKIPPED: &str = include_str!("skipped.txt");
const DIFFERENCES: &str = include_str!("differences.txt");

/// Specs, and what is to be said of them.
#[derive(Debug)]
pub(super) struct Reason {
    pub(super) names: Regex,
    pub(super) reason: &'static str,
}

/// The specs that cannot run here.
///
/// # Errors
/// A line of the list lacks a reason, or is no regular expression.
pub(super) fn skipped() -> Result<Vec<Reason>> {
    list(SKIPPED)
}

/// The specs to which topo-lb gives another answer than kube-proxy on purpose, or the same only with a setting.
///
/// # Errors
/// As [`skipped`].
pub(super) fn differences() -> Result<Vec<Reason>> {
    list(DIFFERENCES)
}

fn list(text: &'static str) -> Result<Vec<Reason>> {
    text.lines().filter(|line| !line.starts_with('#')).map(read).collect()
}

fn read(line: &'static str) -> Result<Reason> {
    let (names, reason) = line.split_once("  ").with_context(|| format!("no reason: {line}"))?;
    let names = Regex::new(names).with_context(|| format!("no regular expression: {names}"))?;
    Ok(Reason { names, reason: reason.trim() })
}

/// All of them as one regular expression, for ginkgo.
pub(super) fn expression(list: &[Reason]) -> String {
    list.iter().map(|it| it.names.as_str()).collect::<Vec<_>>().join("|")
}

/// Why a spec has not run.
pub(super) fn of_skipped(list: &[Reason], name: &str) -> &'static str {
    let found = list.iter().find(|it| it.names.is_match(name));
    found.map_or("the spec itself finds that it cannot run here", |it| it.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_reason() {
        let list = skipped().unwrap();
        assert!(list.iter().chain(&differences().unwrap()).all(|it| !it.reason.is_empty()));
        let name = "[sig-network] Services should work after restarting apiserver [Disruptive]";
        assert!(of_skipped(&list, name).contains("SSH"));
        assert!(Regex::new(&expression(&list)).unwrap().is_match(name));
        assert!(!Regex::new(&expression(&list)).unwrap().is_match("Services should serve"));
    }
}

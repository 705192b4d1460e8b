//! The specs that cannot run here, and why.

use anyhow::{Context as _, Result};
use regex::Regex;

/// The list; its first line says what is in a line.
const LIST: &str = include_str!("skipped.txt");

/// Specs that cannot run here.
#[derive(Debug)]
pub(super) struct Skipped {
    pub(super) names: Regex,
    pub(super) reason: &'static str,
}

/// Reads the list.
///
/// # Errors
/// A line lacks a reason, or is no regular expression.
pub(super) fn list() -> Result<Vec<Skipped>> {
    LIST.lines().filter(|line| !line.starts_with('#')).map(read).collect()
}

fn read(line: &'static str) -> Result<Skipped> {
    let (names, reason) = line.split_once("  ").with_context(|| format!("no reason: {line}"))?;
    let names = Regex::new(names).with_context(|| format!("no regular expression: {names}"))?;
    Ok(Skipped { names, reason: reason.trim() })
}

/// All of them as one regular expression, for ginkgo.
pub(super) fn expression(list: &[Skipped]) -> String {
    list.iter().map(|it| it.names.as_str()).collect::<Vec<_>>().join("|")
}

/// Why a spec is skipped.
pub(super) fn reason(list: &[Skipped], name: &str) -> &'static str {
    let found = list.iter().find(|it| it.names.is_match(name));
    found.map_or("the spec itself finds that it cannot run here", |it| it.reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_has_a_reason() {
        let list = list().unwrap();
        assert!(list.iter().all(|it| !it.reason.is_empty()));
        let name = "[sig-network] Services should work after restarting apiserver [Disruptive]";
        assert!(reason(&list, name).contains("SSH"));
        assert!(Regex::new(&expression(&list)).unwrap().is_match(name));
        assert!(!Regex::new(&expression(&list)).unwrap().is_match("Services should serve"));
    }
}

//! How many instructions of each program the verifiers look at, by kernel: kept in the repository,
//! so that growth is seen before a kernel refuses a program. Only Debian's kernels are kept, which
//! are the same for everybody.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use super::debian_kernel::Line;
use super::report::Verified;
use crate::workspace::Workspace;

/// Below the root of the repository.
pub(super) const PATH: &str = "tests/verifier.tsv";

/// What no verifier goes beyond (`BPF_COMPLEXITY_LIMIT_INSNS`); the suite `verifier` fails before.
const LIMIT: u32 = 1_000_000;

/// Counts by kernel and program.
type Table = BTreeMap<String, BTreeMap<String, u32>>;

/// What is known, and what has been seen now.
#[derive(Debug)]
pub(super) struct Counts {
    known: Table,
    seen: Table,
}

impl Counts {
    /// What the repository knows.
    ///
    /// # Errors
    /// The file is there, and cannot be read.
    pub(super) fn read(workspace: &Workspace) -> Result<Self> {
        let path = path(workspace);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            other => other.with_context(|| format!("cannot read {}", path.display()))?,
        };
        Ok(Self { known: parse(&text), seen: Table::new() })
    }

    /// What a kernel has said now.
    pub(super) fn set(&mut self, kernel: &str, verified: Verified) {
        self.seen.insert(kernel.to_owned(), verified.into_iter().collect());
    }

    /// For people: what was seen, a column for each kernel, and how it differs from what is known.
    pub(super) fn table(&self) -> Vec<String> {
        let kernels: Vec<&String> = self.seen.keys().collect();
        let head: String = kernels.iter().map(|kernel| format!("{kernel:>9}")).collect();
        let mut lines = vec![
            format!("instructions that the verifiers looked at, {LIMIT} at most:"),
            format!("{:<16}{head}", "program"),
        ];
        for program in programs(&self.seen) {
            let mut line = format!("{program:<16}");
            let mut changes = Vec::new();
            for kernel in &kernels {
                let now = count(&self.seen, kernel, program);
                line.push_str(&format!("{:>9}", cell(now)));
                let before = count(&self.known, kernel, program);
                if before.is_some() && before != now {
                    changes.push(format!("{kernel}: {} before", cell(before)));
                }
            }
            if !changes.is_empty() {
                line.push_str(&format!("  ({})", changes.join(", ")));
            }
            lines.push(line);
        }
        lines
    }

    /// Keeps what was seen; whether that is another than what was known.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, workspace: &Workspace) -> Result<bool> {
        let mut table = self.known.clone();
        let kept = |kernel: &str| Line::ALL.iter().any(|line| line.name() == kernel);
        table.extend(self.seen.clone().into_iter().filter(|(kernel, _)| kept(kernel)));
        let text = print(&table);
        let path = path(workspace);
        if fs::read_to_string(&path).is_ok_and(|old| old == text) {
            return Ok(false);
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(true)
    }
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.root.join(PATH)
}

/// A line for each program, a column for each kernel. What is no number is not there.
fn parse(text: &str) -> Table {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let kernels: Vec<&str> = lines.next().unwrap_or_default().split('\t').skip(1).collect();
    let mut table = Table::new();
    for line in lines {
        let mut cells = line.split('\t');
        let program = cells.next().unwrap_or_default();
        for (kernel, cell) in kernels.iter().zip(cells) {
            if let Ok(count) = cell.parse() {
                table.entry((*kernel).to_owned()).or_default().insert(program.to_owned(), count);
            }
        }
    }
    table
}

fn print(table: &Table) -> String {
    let kernels = Line::ALL.map(Line::name);
    let mut text = format!(
        "# Instructions that the verifier of a kernel looks at, {LIMIT} at most.\n\
         # Written by `cargo xtask test --only kernels`; not by hand.\nprogram\t{}\n",
        kernels.join("\t")
    );
    for program in programs(table) {
        let cells = kernels.map(|kernel| cell(count(table, kernel, program)));
        text.push_str(&format!("{program}\t{}\n", cells.join("\t")));
    }
    text
}

/// Every program that any kernel has seen.
fn programs(table: &Table) -> BTreeSet<&String> {
    table.values().flat_map(BTreeMap::keys).collect()
}

fn count(table: &Table, kernel: &str, program: &str) -> Option<u32> {
    table.get(kernel)?.get(program).copied()
}

fn cell(count: Option<u32>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, u32)]) -> Verified {
        pairs.iter().map(|(program, count)| ((*program).to_owned(), *count)).collect()
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let mut counts = Counts { known: Table::new(), seen: Table::new() };
        counts.set("6.1", of(&[("connect4", 12), ("connect6", 13)]));
        counts.set("6.12", of(&[("connect4", 14)]));
        let text = print(&counts.seen);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        let expected = ["program\t5.10\t6.1\t6.12", "connect4\t-\t12\t14", "connect6\t-\t13\t-"];
        assert_eq!(rows, expected);
        assert_eq!(parse(&text), counts.seen);
        assert!(parse("").is_empty());
    }

    #[test]
    fn a_count_that_differs_is_shown_with_what_it_was() {
        let known = parse("program\t6.1\nconnect4\t12\nconnect6\t13\n");
        let mut counts = Counts { known, seen: Table::new() };
        counts.set("6.1", of(&[("connect4", 12), ("connect6", 15), ("sendmsg4", 1)]));
        let lines = counts.table();
        let expected = [
            "program               6.1",
            "connect4               12",
            "connect6               15  (6.1: 13 before)",
            "sendmsg4                1",
        ];
        assert_eq!(lines[1..], expected);
    }
}

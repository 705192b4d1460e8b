//! The verifiers' counts for each program. The repository has them, to detect growth before a
//! kernel refuses a program. A run fails if a count differs too much.

use fs_err as fs;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Result;

use super::debian_kernel::Line;
use super::report::Verified;
use crate::workspace::Workspace;

/// Relative to the root of the repository.
pub(super) const PATH: &str = "tests/verifier.tsv";

/// The kernel of the machines that build topo-lb. Its counts are compared only on such a machine.
const HOST: &str = "6.18";

/// A count may differ by this fraction (1/20), as compilers and kernels get fixes …
const TOLERATED_PART: u32 = 20;
/// … and by this number, which is small compared with the limits.
const TOLERATED: u32 = 50;

/// The most that the verifier accepts of a measure: `BPF_COMPLEXITY_LIMIT_INSNS` (include/linux/bpf.h)
/// and `BPF_COMPLEXITY_LIMIT_JMP_SEQ` (kernel/bpf/verifier.c).
const LIMITS: [(&str, u32); 2] = [("instructions", 1_000_000), ("jumps", 8_192)];

/// By kernel, then by program and measure.
type Table = BTreeMap<String, BTreeMap<(String, String), u32>>;

/// In front of the digest of [`accepted`](super::accepted), in the file.
const ACCEPTED: &str = "# accepted: ";

/// The counts of the repository and of this run.
#[derive(Debug)]
pub(super) struct Counts {
    known: Table,
    seen: Table,
    /// The digest of the inputs that the counts of the repository are of.
    accepted: Option<String>,
}

/// The column of this machine's kernel, if the repository has counts of it.
pub(super) fn host_column(release: &str) -> Option<&'static str> {
    let line = release.split('.').take(2).collect::<Vec<_>>().join(".");
    (line == HOST).then_some(HOST)
}

impl Counts {
    pub(super) fn read(workspace: &Workspace) -> Result<Self> {
        let path = path(workspace);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            other => other?,
        };
        Ok(Self { known: parse(&text), seen: Table::new(), accepted: accepted(&text) })
    }

    /// Whether the repository's counts are of these [inputs](super::accepted).
    pub(super) fn are_of(&self, inputs: &str) -> bool {
        self.accepted.as_deref() == Some(inputs)
    }

    pub(super) fn set(&mut self, kernel: &str, verified: Verified) {
        self.seen.insert(kernel.to_owned(), verified.into_iter().collect());
    }

    /// Like [`set`](Self::set), for a kernel that refuses some programs: their counts stay as they are.
    pub(super) fn set_part(&mut self, kernel: &str, verified: Verified) {
        let mut all = self.known.get(kernel).cloned().unwrap_or_default();
        all.extend(verified);
        self.seen.insert(kernel.to_owned(), all);
    }

    /// The counts of this run for people: a column per kernel, with differences.
    pub(super) fn table(&self) -> Vec<String> {
        let kernels: Vec<&String> = self.seen.keys().collect();
        let head: String = kernels.iter().map(|kernel| format!("{kernel:>9}")).collect();
        let rows = rows(&[&self.seen]);
        let longest = rows.iter().map(|(program, _)| program.len()).max().unwrap_or_default();
        let width = 2 + longest.max("program".len());
        let mut lines = vec![format!("{:<width$}{:<14}{head}", "program", "measure")];
        for row in rows {
            let mut line = format!("{:<width$}{:<14}", row.0, row.1);
            let mut changes = Vec::new();
            for kernel in &kernels {
                let now = count(&self.seen, kernel, row);
                line.push_str(&format!("{:>9}", cell(now)));
                let before = count(&self.known, kernel, row);
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

    /// The kernels of this run of which the repository has no counts.
    pub(super) fn unknown(&self) -> Vec<&str> {
        self.seen.keys().filter(|it| !self.known.contains_key(*it)).map(String::as_str).collect()
    }

    /// One sentence for each count that differs too much.
    pub(super) fn drifts(&self) -> Vec<String> {
        let mut drifts = Vec::new();
        for kernel in self.seen.keys().filter(|it| self.known.contains_key(*it)) {
            for row in rows(&[&self.seen, &self.known]) {
                let (before, now) =
                    (count(&self.known, kernel, row), count(&self.seen, kernel, row));
                if !is_alike(before, now) {
                    let ((program, measure), before, now) = (row, cell(before), cell(now));
                    drifts.push(format!("{program} on {kernel}: {now} {measure}, {before} before"));
                }
            }
        }
        drifts
    }

    /// Writes the counts, as those of these [inputs](super::accepted); `None`: of several.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn write(&self, workspace: &Workspace, inputs: Option<&str>) -> Result<()> {
        let mut table = self.known.clone();
        table.extend(self.seen.clone());
        Ok(fs::write(path(workspace), print(&table, inputs.unwrap_or("-")))?)
    }
}

fn is_alike(before: Option<u32>, now: Option<u32>) -> bool {
    match (before, now) {
        (Some(before), Some(now)) => before.abs_diff(now) <= TOLERATED.max(before / TOLERATED_PART),
        (before, now) => before == now,
    }
}

fn path(workspace: &Workspace) -> PathBuf {
    workspace.root.join(PATH)
}

/// The columns before those of the kernels.
const HEAD: [&str; 4] = ["program", "measure", "limit", "share"];

/// The digest in the file.
fn accepted(text: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(ACCEPTED)).map(str::to_owned)
}

/// Parses a line per program and measure, and a column per kernel. `-`: no count.
fn parse(text: &str) -> Table {
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let head = lines.next().unwrap_or_default();
    let kernels: Vec<&str> = head.split('\t').skip(HEAD.len()).collect();
    let mut table = Table::new();
    for line in lines {
        let mut cells = line.split('\t');
        let (Some(program), Some(measure)) = (cells.next(), cells.next()) else { continue };
        for (kernel, cell) in kernels.iter().zip(cells.skip(HEAD.len() - 2)) {
            if let Ok(count) = cell.parse() {
                let row = (program.to_owned(), measure.to_owned());
                table.entry((*kernel).to_owned()).or_default().insert(row, count);
            }
        }
    }
    table
}

fn print(table: &Table, inputs: &str) -> String {
    let kernels: Vec<&str> = Line::ALL.map(Line::name).into_iter().chain([HOST]).collect();
    let mut text = format!(
        "# How much of a limit of the kernel's verifier a program needs: instructions that the verifier\n\
         # looks at, and jumps with a branch that it has put aside, at the same time. `share`: the\n\
         # largest part of the limit on any kernel.\n\
         # Written by `cargo xtask test --only kernels --bless`; not by hand. While object, loader and\n\
         # kernels are those of this digest, `cargo xtask test` does not ask the verifiers again.\n\
         {ACCEPTED}{inputs}\n\
         {}\t{}\n",
        HEAD.join("\t"),
        kernels.join("\t")
    );
    for row in rows(&[table]) {
        let counts: Vec<_> = kernels.iter().map(|kernel| count(table, kernel, row)).collect();
        let most = counts.iter().flatten().max().copied().unwrap_or_default();
        let limit = LIMITS.iter().find(|(measure, _)| *measure == row.1).map(|(_, limit)| *limit);
        let share = limit.map_or(String::new(), |limit| percent(most, limit));
        let mut cells = vec![row.0.clone(), row.1.clone(), cell(limit), share];
        cells.extend(counts.into_iter().map(cell));
        text.push_str(&format!("{}\n", cells.join("\t")));
    }
    text
}

/// A part of a limit in per cent, rounded up.
fn percent(part: u32, limit: u32) -> String {
    format!("{}%", (u64::from(part) * 100).div_ceil(u64::from(limit)))
}

/// All programs and measures of any kernel.
fn rows<'a>(tables: &[&'a Table]) -> BTreeSet<&'a (String, String)> {
    tables.iter().flat_map(|table| table.values()).flat_map(BTreeMap::keys).collect()
}

fn count(table: &Table, kernel: &str, row: &(String, String)) -> Option<u32> {
    table.get(kernel)?.get(row).copied()
}

fn cell(count: Option<u32>) -> String {
    count.map_or_else(|| "-".to_owned(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(counts: &[(&str, u32)]) -> Verified {
        let row = |program: &str| (program.to_owned(), "instructions".to_owned());
        counts.iter().map(|(program, count)| (row(program), *count)).collect()
    }

    fn nothing() -> Counts {
        Counts { known: Table::new(), seen: Table::new(), accepted: None }
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let mut counts = nothing();
        counts.set("6.1", of(&[("connect4", 12), ("connect6", 599_999)]));
        counts.set("6.18", of(&[("connect4", 14)]));
        let text = print(&counts.seen, "0a1b");
        assert_eq!(accepted(&text).as_deref(), Some("0a1b"));
        let rows: Vec<&str> = text.lines().skip(6).collect();
        let expected = [
            "program\tmeasure\tlimit\tshare\t5.10\t6.1\t6.12\tarm64\t6.18",
            "connect4\tinstructions\t1000000\t1%\t-\t12\t-\t-\t14",
            "connect6\tinstructions\t1000000\t60%\t-\t599999\t-\t-\t-",
        ];
        assert_eq!(rows, expected);
        assert_eq!(parse(&text), counts.seen);
        assert!(parse("").is_empty());
    }

    #[test]
    fn counts_are_of_the_inputs_that_they_were_written_with_and_of_no_others() {
        let read = |text: &str| Counts { accepted: accepted(text), ..nothing() };
        let written = read(&print(&Table::new(), "0a1b"));
        assert!(written.are_of("0a1b") && !written.are_of("0a1c"));
        assert!(!read("program\tmeasure\n").are_of("0a1b"), "a file without a digest");
    }

    #[test]
    fn a_count_that_differs_is_shown_with_what_it_was() {
        let known = parse(
            "program\tmeasure\tlimit\tshare\t6.1\n\
             connect4\tinstructions\t9\t1%\t12\nconnect6\tinstructions\t9\t1%\t13\n",
        );
        let mut counts = Counts { known, ..nothing() };
        counts.set("6.1", of(&[("connect4", 12), ("connect6", 15), ("sendmsg4", 1)]));
        let expected = [
            "program   measure             6.1",
            "connect4  instructions         12",
            "connect6  instructions         15  (6.1: 13 before)",
            "sendmsg4  instructions          1",
        ];
        assert_eq!(counts.table(), expected);
    }

    #[test]
    fn a_run_fails_on_what_has_grown_shrunk_come_or_gone() {
        let mut counts = nothing();
        let known = [("grown", 10_000), ("shrunk", 10_000), ("little", 100), ("gone", 5)];
        counts.set("6.1", of(&known));
        counts.set("6.12", of(&known));
        counts.known = std::mem::take(&mut counts.seen);
        counts.set("6.1", of(&known));
        assert!(counts.drifts().is_empty(), "a kernel that was not run is not compared");
        counts.set_part("6.1", of(&known[..1]));
        assert!(counts.drifts().is_empty(), "what this kernel refused is not compared");
        counts.set("arm64", of(&known));
        assert_eq!((counts.unknown(), counts.drifts()), (vec!["arm64"], Vec::new()));
        let now = [("grown", 10_501), ("shrunk", 9_499), ("little", 150), ("new", 5)];
        counts.set("6.1", of(&now));
        let expected = [
            "gone on 6.1: - instructions, 5 before",
            "grown on 6.1: 10501 instructions, 10000 before",
            "new on 6.1: 5 instructions, - before",
            "shrunk on 6.1: 9499 instructions, 10000 before",
        ];
        assert_eq!(counts.drifts(), expected);
    }

    #[test]
    fn this_machine_s_kernel_is_compared_only_where_it_is_of_the_line_that_is_kept() {
        assert_eq!(host_column("6.18.33-cloud"), Some("6.18"));
        assert_eq!(host_column("6.1.0"), None);
        assert_eq!(host_column(""), None);
    }
}

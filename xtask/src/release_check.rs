//! `cargo xtask release --check`: each promise of a release, read or tried, on a machine that reaches no other one.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use comfy_table::{Table, presets};
use serde::Serialize;

use crate::alone;
use crate::image::VERSION;
use crate::install;
use crate::last_release::{self, LastRelease};
use crate::process::{caught, output_of};
use crate::progress::{self, clock};
use crate::release::Source;
use crate::release::by_hand::{self, Task};
use crate::release::promises;
use crate::release::written;
use crate::stage;
use crate::summary::Outcome;
use crate::workspace::Workspace;

/// What was checked, and what is left to a maintainer.
#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    commit: Option<String>,
    /// Whether every promise was checked and is kept.
    kept: bool,
    promises: Vec<Row>,
    by_hand: Vec<Task>,
}

#[derive(Debug, Serialize)]
struct Row {
    promise: &'static str,
    /// How it was proved, in one line.
    how: String,
    result: Verdict,
    /// What breaks the promise, or what could not be checked.
    why: Vec<String>,
    seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Kept,
    /// Kept, but for a part that nothing can be compared with yet.
    KeptSoFar,
    Broken,
    NotRun,
}

impl Verdict {
    const fn name(self) -> &'static str {
        match self {
            Self::Kept => "✓ kept",
            Self::KeptSoFar => "✓ kept so far",
            Self::Broken => "✗ broken",
            Self::NotRun => "– not run",
        }
    }
}

/// The promises that take a build, and how each is proved.
const OFFLINE: (&str, &str) = (
    "offline",
    "only set-up takes a network: what is below runs in a network namespace with `lo` alone",
);
const TWICE: (&str, &str) = (
    "twice the same",
    "two checkouts give the same bytes; the sums are right; the program passes `topo-lb try`",
);
const INSTALLS: (&str, &str) =
    ("installs", "a real cluster, from the files of the release alone: image, overlays, chart");

impl Report {
    fn add(
        &mut self,
        (promise, how): (&'static str, &str),
        checked: Result<Outcome>,
        begun: Instant,
    ) {
        let (result, why) = match checked {
            Ok(Outcome::Passed(remark)) => (Verdict::Kept, remark.into_iter().collect()),
            Ok(Outcome::NothingToCheck(what)) => (Verdict::KeptSoFar, vec![what]),
            Ok(Outcome::Unchecked(what)) => (Verdict::Broken, vec![what]),
            Ok(Outcome::Failed) => (Verdict::Broken, Vec::new()),
            Ok(Outcome::NotRun) => (Verdict::NotRun, Vec::new()),
            Err(error) => (Verdict::Broken, vec![format!("{error:#}")]),
        };
        let seconds = (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        self.kept &= matches!(result, Verdict::Kept | Verdict::KeptSoFar);
        self.promises.push(Row { promise, how: how.to_owned(), result, why, seconds });
    }

    /// Adds what follows once something is broken.
    fn add_the_rest(&mut self) {
        for row in [OFFLINE, TWICE, INSTALLS] {
            if !self.promises.iter().any(|it| it.promise == row.0) {
                self.add(row, Ok(Outcome::NotRun), Instant::now());
            }
        }
    }

    fn print(&self, as_json: bool) -> Result<()> {
        progress::headline(&format!("what topo-lb {VERSION} promises"));
        table(&self.promises).iter().for_each(|line| progress::line(line));
        for row in self.promises.iter().filter(|row| !row.why.is_empty()) {
            progress::headline(row.promise);
            row.why.iter().for_each(|why| progress::note(why));
        }
        progress::headline("what a maintainer does by hand");
        lines(&self.by_hand).iter().for_each(|line| progress::line(line));
        if as_json {
            println!("{}", serde_json::to_string_pretty(self)?);
        }
        Ok(())
    }
}

pub(crate) fn run(workspace: &Workspace, as_json: bool) -> Result<()> {
    // First what takes no time.
    let mut report = read(workspace)?;
    if report.kept {
        alone::ensure_alone()?;
        progress::headline("what can be read");
        table(&report.promises).iter().for_each(|line| progress::line(line));
        build(workspace, &mut report)?;
        ensure!(caught() == 0, "interrupted");
    }
    report.add_the_rest();
    report.print(as_json)?;
    let broken = report.promises.iter().filter(|row| row.result == Verdict::Broken);
    let broken: Vec<_> = broken.map(|row| row.promise).collect();
    ensure!(broken.is_empty(), "not kept: {}", broken.join(", "));
    Ok(())
}

/// What can be read.
fn read(workspace: &Workspace) -> Result<Report> {
    let source = Source::find(workspace)?;
    let begun = Instant::now();
    let (all, places) = written::all(workspace)?;
    let mut report = Report {
        version: VERSION,
        by_hand: by_hand::tasks(&places, source.commit.as_deref()),
        commit: source.commit.clone(),
        kept: true,
        promises: Vec::new(),
    };
    let why = source.why_no_commit;
    let how = "git knows no change beside it, and no other commit has its tag";
    report.add(("from a commit", how), tagged(workspace, &source, why), begun);
    for read in all {
        let outcome = match (read.faults.is_empty(), read.promise) {
            // Tests that no release has been there to run with.
            (true, "upgrades") => Ok(last_release::outcome(LastRelease::find(workspace).as_ref())),
            (true, _) => Ok(Outcome::Passed(None)),
            (false, _) => Ok(Outcome::Failed),
        };
        report.add((read.promise, &read.how), outcome, Instant::now());
        if let Some(row) = report.promises.last_mut() {
            row.why.extend(read.faults);
        }
    }
    Ok(report)
}

/// The commit is all that is released, and it can have its tag.
fn tagged(workspace: &Workspace, source: &Source, why: &str) -> Result<Outcome> {
    ensure!(source.commit.is_some(), "a release is made from a commit: {why}");
    let name = format!("refs/tags/v{VERSION}^{{commit}}");
    let mut find = workspace.command("git");
    let of_tag = output_of(find.args(["rev-parse", "--quiet", "--verify", &name]));
    match of_tag.as_deref().map(str::trim) {
        None => Ok(Outcome::Passed(None)),
        tag if tag == source.commit.as_deref() => Ok(Outcome::Passed(None)),
        Some(other) => bail!(
            "v{VERSION} is the tag of {other}: a release is never made a second time from another commit"
        ),
    }
}

/// What takes a build. Stops at the first promise that is broken.
///
/// # Errors
/// The machine lacks something: that says nothing about the release.
fn build(workspace: &Workspace, report: &mut Report) -> Result<()> {
    let begun = Instant::now();
    progress::headline("set-up");
    install::ready(workspace, &stage::release_needs())?;
    stage::get_for_release(workspace)?;
    report.add(OFFLINE, Ok(Outcome::Passed(None)), begun);
    progress::headline(TWICE.0);
    let begun = Instant::now();
    let dist = match promises::run(workspace) {
        Ok(dist) => dist,
        Err(error) => {
            report.add(TWICE, Err(error), begun);
            return Ok(());
        }
    };
    let how = format!("{} files: {}", dist.files()?, TWICE.1);
    report.add((TWICE.0, &how), Ok(Outcome::Passed(None)), begun);
    progress::headline(INSTALLS.0);
    let begun = Instant::now();
    let installed = stage::install_release(workspace, &dist);
    report.add(INSTALLS, installed, begun);
    Ok(())
}

/// The promises, aligned.
fn table(rows: &[Row]) -> Vec<String> {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_header([
        "promise",
        "how it was proved",
        "result",
        "time",
    ]);
    for row in rows {
        let time = match row.result {
            Verdict::NotRun => String::new(),
            _ if row.seconds < 1.0 => String::new(),
            _ => clock(Duration::from_secs_f64(row.seconds)),
        };
        table.add_row([row.promise, &row.how, row.result.name(), &time]);
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

/// The tasks, numbered.
fn lines(tasks: &[Task]) -> Vec<String> {
    let mut lines = Vec::new();
    for (number, task) in (1..).zip(tasks) {
        lines.push(format!("{number:>3}. {} ({})", task.what, task.described));
        lines.extend(task.commands.iter().map(|command| format!("       $ {command}")));
        lines.extend(task.places.iter().map(|place| format!("       {place}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outcomes: Vec<Result<Outcome>>) -> Report {
        let mut report = Report {
            version: VERSION,
            commit: None,
            kept: true,
            promises: Vec::new(),
            by_hand: by_hand::tasks(&[], None),
        };
        for outcome in outcomes {
            report.add(("changelog", "read"), outcome, Instant::now());
        }
        report
    }

    #[test]
    fn a_promise_that_was_not_checked_is_not_kept() {
        let said = || "no release".to_owned();
        for (outcome, verdict) in [
            (Ok(Outcome::Passed(None)), Verdict::Kept),
            (Ok(Outcome::NothingToCheck(said())), Verdict::KeptSoFar),
            (Ok(Outcome::Unchecked(said())), Verdict::Broken),
            (Ok(Outcome::Failed), Verdict::Broken),
            (Ok(Outcome::NotRun), Verdict::NotRun),
            (Err(anyhow::anyhow!("two differ")), Verdict::Broken),
        ] {
            let report = of(vec![outcome]);
            let is_kept = matches!(verdict, Verdict::Kept | Verdict::KeptSoFar);
            assert_eq!((report.promises[0].result, report.kept), (verdict, is_kept));
        }
    }

    #[test]
    fn the_table_is_aligned_and_says_what_was_not_run() {
        let mut report = of(vec![Ok(Outcome::Failed)]);
        report.add_the_rest();
        let lines = table(&report.promises);
        assert_eq!(lines.len(), 5, "{lines:#?}");
        let column =
            |line: &String, word: &str| line.split(word).next().map(|it| it.chars().count());
        assert_eq!(column(&lines[0], "result"), column(&lines[1], "✗ broken"), "{lines:#?}");
        assert_eq!(column(&lines[0], "result"), column(&lines[4], "– not run"), "{lines:#?}");
        let said = serde_json::to_value(&report).unwrap();
        assert_eq!(said["promises"][3]["result"], "not-run");
        assert_eq!(said["by_hand"][0]["described"], "docs/releases.md#verify");
    }
}

//! What is supported is said with the runs that show it, and so are the rules of upgrades.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::{Read, Texts};
use crate::architecture::Architecture;
use crate::docs;

/// The page that states what is supported, by a table below this heading.
const PAGE: &str = "docs/releases.md";
const SUPPORT: &str = "## Support";
const UPGRADES: &str = "## Upgrades";
/// The page that says what was run.
const RUNS: &str = "docs/compatibility.md";
/// The kernels that have run every program: the columns after the limits.
const KERNELS: &str = "tests/verifier.tsv";
/// Kept results of Kubernetes' own tests, a folder for each version.
const KUBERNETES: &str = "docs/conformance/";

/// `Linux 5.10, 6.1 and 6.12`.
static LINUX: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"Linux (\d+\.\d+(?:(?:, | and )\d+\.\d+)*)").expect("a constant expression")
});
static CLUSTER: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"Kubernetes (1\.\d+)").expect("a constant expression"));
static VERSION: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\d+\.\d+").expect("a constant expression"));
/// The oldest version that is supported.
static OLDEST: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(Linux|Kubernetes) (\d+\.\d+) (?:or|and) later").expect("a constant expression")
});

/// Pages that say which versions a node and a cluster need.
const STATE: [&str; 4] = ["README.md", "CHANGELOG.md", "docs/operations.md", PAGE];

pub(super) fn read(texts: &Texts) -> Read {
    let (first, section) = texts.section(PAGE, SUPPORT);
    let mut faults = Vec::new();
    let rows: Vec<_> =
        (first..).zip(section.lines()).filter(|(_, it)| it.starts_with("| ")).collect();
    let stated =
        |name: &str| rows.iter().any(|(_, row)| row.split('|').nth(1).unwrap_or("").contains(name));
    let architectures = Architecture::ALL.map(Architecture::name);
    for name in ["Linux", "Kubernetes"].into_iter().chain(architectures) {
        if !stated(name) {
            faults.push(format!("{PAGE}: no row of `{SUPPORT}` states {name}"));
        }
    }
    for page in [PAGE, RUNS] {
        faults.extend(match page {
            // Only this table of the page is about what was run.
            PAGE => docs::without_a_run(
                PAGE,
                &format!("{}{section}", "\n".repeat(first.saturating_sub(1))),
            ),
            _ => docs::without_a_run(page, texts.text(page)),
        });
    }

    let kernels: BTreeSet<&str> = kernels(texts.text(KERNELS)).collect();
    let clusters: BTreeSet<&str> = texts
        .files
        .keys()
        .filter_map(|path| {
            path.strip_prefix(KUBERNETES)?.split_once('/').map(|(version, _)| version)
        })
        .collect();
    for (path, at, line) in texts.lines(|path| [PAGE, RUNS].contains(&path)) {
        for run in line.split("*run*").skip(1) {
            let run = run.split(['*', '|']).next().unwrap_or_default();
            let said = LINUX.captures_iter(run).flat_map(|it| {
                VERSION
                    .find_iter(it.get(1).map_or("", |it| it.as_str()))
                    .map(|it| ("Linux", it.as_str()))
            });
            let said = said.chain(
                CLUSTER
                    .captures_iter(run)
                    .filter_map(|it| Some(("Kubernetes", it.get(1)?.as_str()))),
            );
            for (what, version) in said {
                let (has, kept) =
                    if what == "Linux" { (&kernels, KERNELS) } else { (&clusters, KUBERNETES) };
                if !has.contains(version) {
                    faults.push(format!(
                        "{path}:{at}: no run with {what} {version} is kept in {kept}"
                    ));
                }
            }
        }
    }
    faults.extend(oldest(texts, &kernels, &clusters));
    // The emulated arm64 has a column, too.
    let is_version = |name: &&str| name.starts_with(|it: char| it.is_ascii_digit());
    let list = |all: &BTreeSet<&str>| {
        all.iter().copied().filter(is_version).collect::<Vec<_>>().join(", ")
    };
    let tests: BTreeSet<_> = rows.iter().flat_map(|(_, row)| docs::named(row)).collect();
    let how = format!(
        "Linux {}; Kubernetes {}; {}; {} suites and tests that {PAGE} names are there",
        list(&kernels),
        list(&clusters),
        architectures.join(", "),
        tests.len()
    );
    Read { promise: "support", how, faults }
}

/// The kernels of the table of what verifiers count.
fn kernels(table: &str) -> impl Iterator<Item = &str> {
    let heading = table.lines().find(|line| line.starts_with("program\t")).unwrap_or_default();
    heading.split('\t').skip(4)
}

/// The oldest versions are the same on all pages and in the chart, and were run.
fn oldest(texts: &Texts, kernels: &BTreeSet<&str>, clusters: &BTreeSet<&str>) -> Vec<String> {
    let mut found = Vec::new();
    for (path, at, line) in texts.lines(|path| STATE.contains(&path)) {
        let versions = OLDEST.captures_iter(line).map(|it| (it[1].to_owned(), it[2].to_owned()));
        found.extend(versions.map(|(what, version)| (path, at, what, version)));
    }
    for (path, at, line) in texts.lines(|path| path.ends_with("/Chart.yaml")) {
        if let Some(version) = line.strip_prefix("kubeVersion: \">=").and_then(|it| it.get(..4)) {
            found.push((path, at, "Kubernetes".to_owned(), version.to_owned()));
        }
    }
    let mut faults = Vec::new();
    for (what, has) in [("Linux", kernels), ("Kubernetes", clusters)] {
        let of = || found.iter().filter(|(_, _, of, _)| of == what);
        let stated =
            of().find(|(path, _, _, _)| *path == PAGE).map_or("", |(_, _, _, it)| it.as_str());
        if !has.contains(stated) {
            faults.push(format!(
                "{PAGE}: the oldest {what} that is stated is {stated:?}, which was not run"
            ));
        }
        faults.extend(of().filter(|(_, _, _, version)| version != stated).map(
            |(path, at, _, version)| {
                format!("{path}:{at}: the oldest {what} is {version}, and {stated} on {PAGE}")
            },
        ));
    }
    faults
}

/// Each rule of upgrades names the tests that show it.
pub(super) fn upgrades(texts: &Texts) -> Read {
    let (first, section) = texts.section(PAGE, UPGRADES);
    let mut faults = Vec::new();
    let (mut rules, mut tests) = (0, BTreeSet::new());
    // A rule may go over several lines.
    for (at, _) in
        section.match_indices("* ").filter(|(at, _)| *at == 0 || section[..*at].ends_with('\n'))
    {
        let rule = section[at + 2..].split("\n* ").next().unwrap_or_default();
        let line = first + section[..at].lines().count();
        rules += 1;
        let named = docs::named(&rule.replace('\n', " "));
        if !named.iter().any(|name| docs::is_there(name, &texts.suites)) {
            faults
                .push(format!("{PAGE}:{line}: the rule names no test that shows it, after *run*"));
        }
        for name in &named {
            if !docs::is_there(name, &texts.suites) {
                faults.push(format!("{PAGE}:{line}: there is no {name}"));
            }
        }
        tests.extend(named);
    }
    if rules == 0 {
        faults.push(format!("{PAGE}: there is no rule below `{UPGRADES}`"));
    }
    let how =
        format!("each of {rules} rules on {PAGE} names tests: {} that are there", tests.len());
    Read { promise: "upgrades", how, faults }
}

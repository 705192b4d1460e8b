//! One version everywhere.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::{Read, Texts};

/// Versions beside the name, as the names of files and images have them, and as fields of kustomize.
static NAMED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?:\btopo-lb[-:]|\bnewTag: |, tag: |^(?:appV|v)ersion: )(\d+\.\d+\.\d+)")
        .expect("a constant expression")
});

/// The manifest of krew, whose version a release fills in.
const KREW: &str = "deploy/krew/topo.yaml";
/// What it has in place of the version.
const FILLED_IN: &str = "@VERSION@";

/// Files that must name the version, at least so many times.
const MUST: [(&str, usize); 8] = [
    ("Cargo.lock", 2),
    ("topo-lb/fuzz/Cargo.lock", 2),
    ("deploy/helm/topo-lb/Chart.yaml", 2),
    ("deploy/base/kustomization.yaml", 1),
    (KREW, 5),
    ("README.md", 1),
    ("docs/releases.md", 1),
    ("CHANGELOG.md", 1),
];

/// What is looked through for [`NAMED`].
fn has_named(path: &str) -> bool {
    path == "README.md"
        || path.starts_with("deploy/")
        || path.starts_with("docs/") && path.ends_with(".md")
}

pub(super) fn read(texts: &Texts) -> Read {
    let manifest = texts.text("Cargo.toml");
    let wanted = manifest.lines().find_map(|line| line.strip_prefix("version = \""));
    let wanted = wanted.map_or("", |rest| rest.trim_end_matches('"'));
    let mut found = places(texts);
    // A version that is filled in is the right one.
    for (_, _, version) in &mut found {
        if version == FILLED_IN {
            wanted.clone_into(version);
        }
    }
    let mut faults: Vec<_> = MUST
        .iter()
        .filter_map(|(path, least)| {
            let count = found.iter().filter(|(of, _, _)| of == path).count();
            (count < *least).then(|| format!("{path} names the version {count} times, not {least}"))
        })
        .collect();
    let others = found.iter().filter(|(_, _, version)| version != wanted);
    faults.extend(others.map(|(path, line, version)| {
        format!("{path}:{line}: the version is {version}, and {wanted} in Cargo.toml")
    }));
    let files: BTreeSet<_> = found.iter().map(|(path, _, _)| path).collect();
    let how = format!(
        "{wanted} in Cargo.toml and at {} places of {} files: lock files, chart, kustomize, krew, pages",
        found.len(),
        files.len()
    );
    Read { promise: "one version", how, faults }
}

/// Path, line and version of each place.
fn places(texts: &Texts) -> Vec<(String, usize, String)> {
    let mut found = Vec::new();
    for (path, at, line) in texts.lines(has_named) {
        let versions = NAMED.captures_iter(line).map(|it| it[1].to_owned());
        found.extend(versions.map(|version| (path.to_owned(), at, version)));
    }
    for (path, at, line) in texts.lines(|path| path == KREW) {
        let times = line.matches(FILLED_IN).count();
        found.extend((0..times).map(|_| (path.to_owned(), at, FILLED_IN.to_owned())));
    }
    for path in ["Cargo.lock", "topo-lb/fuzz/Cargo.lock"] {
        found.extend(locked(texts.text(path)).map(|(at, version)| (path.to_owned(), at, version)));
    }
    let heading = |(path, at, line): (&str, usize, &str)| {
        let version = line.strip_prefix("## ")?.split(' ').next()?;
        Some((path.to_owned(), at, version.to_owned()))
    };
    // The first one: older versions follow.
    found.extend(texts.lines(|path| path == "CHANGELOG.md").find_map(heading));
    found
}

/// The lines and versions of the workspace's own packages in a lock file: those without a source.
fn locked(lock: &str) -> impl Iterator<Item = (usize, String)> {
    let mut at = 0;
    let packages = lock.split_inclusive("\n\n").filter_map(move |package| {
        let start = at;
        at += package.lines().count();
        let is_ours = package.starts_with("[[package]]") && !package.contains("\nsource = ");
        // The fuzz target is part of no release.
        if !is_ours || package.contains("name = \"topo-lb-fuzz\"") {
            return None;
        }
        let (line, version) = (1..).zip(package.lines()).find_map(|(line, text)| {
            Some((line, text.strip_prefix("version = \"")?.trim_end_matches('"')))
        })?;
        Some((start + line, version.to_owned()))
    });
    packages.collect::<Vec<_>>().into_iter()
}

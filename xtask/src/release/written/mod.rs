//! What a release promises that can be read, without building anything.

mod changelog;
mod placeholders;
mod support;
mod versions;

use std::collections::BTreeMap;

use anyhow::Result;
use fs_err as fs;

use crate::docs;
use crate::workspace::Workspace;

pub(crate) use placeholders::{IMAGE, Place, Subject};

/// The texts that a check reads.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    /// By path below the root of the workspace.
    files: BTreeMap<String, String>,
    /// The sources of the suites, without white space.
    suites: BTreeMap<String, String>,
}

/// A promise, and what was found.
#[derive(Debug)]
pub(crate) struct Read {
    pub(crate) promise: &'static str,
    /// What was compared, in one line.
    pub(crate) how: String,
    /// A sentence for each thing that breaks the promise, with file and line.
    pub(crate) faults: Vec<String>,
}

/// Texts of the repository that a release ships, or that state something about it.
fn is_read(path: &str) -> bool {
    let is_page = path.starts_with("docs/") && path.ends_with(".md");
    let is_shipped = path.starts_with("deploy/") && !path.ends_with(".json");
    let others = [
        "CHANGELOG.md",
        "Cargo.lock",
        "Cargo.toml",
        "README.md",
        "SECURITY.md",
        "tests/verifier.tsv",
        "topo-lb/fuzz/Cargo.lock",
        "xtask/src/workspace.rs",
    ];
    is_page || is_shipped || path.starts_with("docs/conformance/") || others.contains(&path)
}

impl Texts {
    fn of(workspace: &Workspace) -> Result<Self> {
        let paths = docs::tracked(workspace)?.into_iter().filter(|path| is_read(path));
        let read = |path: String| {
            let text = fs::read_to_string(workspace.root.join(&path))?;
            Ok((path, text))
        };
        Ok(Self {
            files: paths.map(read).collect::<Result<_>>()?,
            suites: docs::suites(workspace)?,
        })
    }

    /// The text of a file; empty if there is none, and then what is looked for is not found.
    fn text(&self, path: &str) -> &str {
        self.files.get(path).map_or("", String::as_str)
    }

    /// Lines of files that `is_one` selects: path, number, line.
    fn lines<'a>(
        &'a self,
        is_one: impl Fn(&str) -> bool + 'a,
    ) -> impl Iterator<Item = (&'a str, usize, &'a str)> {
        let files = self.files.iter().filter(move |(path, _)| is_one(path));
        files.flat_map(|(path, text)| {
            (1..).zip(text.lines()).map(|(at, it)| (path.as_str(), at, it))
        })
    }

    /// A section of a page: what is between its heading and the next one of the same level, and the number of
    /// its first line. Empty if the page has no such heading.
    fn section(&self, path: &str, heading: &str) -> (usize, &str) {
        let (text, level) = (self.text(path), heading.split(' ').next().unwrap_or_default());
        let Some(at) = text.find(&format!("\n{heading}\n")) else { return (0, "") };
        let from = at + heading.len() + 2;
        let rest = &text[from..];
        let end = rest.find(&format!("\n{level} ")).map_or(rest.len(), |end| end + 1);
        (text[..from].lines().count() + 1, &rest[..end])
    }
}

/// Reads everything; and what only a maintainer can decide, with its places.
///
/// # Errors
/// A file cannot be read.
pub(crate) fn all(workspace: &Workspace) -> Result<(Vec<Read>, Vec<Place>)> {
    let texts = Texts::of(workspace)?;
    let (pages, faults) = docs::check(workspace)?;
    let mut all = texts_alone(&texts);
    let how = format!("{pages} pages: links, names of files, commands, names of tests");
    all.push(Read { promise: "pages", how, faults });
    Ok((all, placeholders::by_hand(&texts)))
}

fn texts_alone(texts: &Texts) -> Vec<Read> {
    vec![
        versions::read(texts),
        changelog::read(texts),
        placeholders::read(texts),
        support::read(texts),
        support::upgrades(texts),
    ]
}

#[cfg(test)]
mod tests;

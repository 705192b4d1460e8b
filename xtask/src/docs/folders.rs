//! The table of folders in ARCHITECTURE.md, compared with the folders that are there.

use std::collections::{BTreeMap, BTreeSet};

use super::page::Page;

/// The page with the table.
const PAGE: &str = "ARCHITECTURE.md";
/// The heading before it.
const HEADING: &str = "\n## Folders\n";

/// Folders whose own folders have a row each, below their row.
const OPEN: [&str; 7] = [
    "topo-lb-ebpf/src",
    "topo-lb/core/src",
    "topo-lb/kernel/src",
    "topo-lb/kube/src",
    "topo-lb/agent/src",
    "topo-lb/src",
    "xtask/src",
];

/// A sentence for each crate and folder that the table lacks, and for each of its rows whose folder is not
/// there. `files` are all files of the repository.
pub(super) fn faults(pages: &BTreeMap<String, Page>, files: &[String]) -> Vec<String> {
    compare(pages.get(PAGE).map_or("", |page| &page.text), files)
}

fn compare(text: &str, files: &[String]) -> Vec<String> {
    let rows = rows(text);
    let mut faults = Vec::new();
    for folder in rows.keys() {
        if below(folder, files).next().is_none() {
            faults.push(format!("{PAGE}: {folder} is not there"));
        }
    }
    for folder in files.iter().filter_map(|file| file.strip_suffix("/Cargo.toml")) {
        let is_of = |row: &String| row == folder || row.starts_with(&format!("{folder}/"));
        if !rows.keys().any(is_of) {
            faults.push(format!("{PAGE}: no row for the crate in {folder}"));
        }
    }
    let none = BTreeSet::new();
    for open in OPEN {
        let named = rows.get(open).unwrap_or(&none);
        let there = below(open, files).filter_map(|rest| Some(rest.split_once('/')?.0)).collect();
        for lacking in BTreeSet::difference(&there, named) {
            faults.push(format!("{PAGE}: no row for {open}/{lacking}"));
        }
        for gone in named.difference(&there) {
            faults.push(format!("{PAGE}: {open}/{gone} is not there"));
        }
    }
    faults
}

/// The paths of all files in a folder, from there.
fn below<'a>(folder: &'a str, files: &'a [String]) -> impl Iterator<Item = &'a str> {
    files.iter().filter_map(move |file| file.strip_prefix(folder)?.strip_prefix('/'))
}

/// The folders below the root that the table names, with their own folders that have rows. A row of the
/// former begins in bold.
fn rows(text: &str) -> BTreeMap<String, BTreeSet<&str>> {
    let (_, table) = text.split_once(HEADING).unwrap_or_default();
    let table = table.split_once("\n## ").map_or(table, |(table, _)| table);
    let mut rows = BTreeMap::new();
    let mut open = None;
    for cell in table.lines().filter_map(|line| line.strip_prefix("| ")?.split('|').next()) {
        let spans: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        if cell.starts_with("**") {
            open = spans.first().map(|it| (*it).to_owned());
            rows.extend(spans.into_iter().map(|it| (it.to_owned(), BTreeSet::new())));
        } else if let Some(own) = open.as_ref().and_then(|open| rows.get_mut(open)) {
            own.extend(spans);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn the_table_of_folders_has_those_that_are_there_and_fits_on_two_screens() {
        let workspace = Workspace::find().unwrap();
        let pages = page::all(&workspace).unwrap();
        let faults = faults(&pages, &page::tracked(&workspace).unwrap());
        assert!(faults.is_empty(), "{}", faults.join("\n"));
        let lines = pages[PAGE].text.lines().count();
        assert!(lines <= 120, "{PAGE} has {lines} lines");
    }

    #[test]
    fn a_folder_that_is_new_or_gone_is_named() {
        let text = "# A\n## Folders\n\n| folder | is |\n|---|---|\n| **`xtask/src`**, `old` | x |\n\
                    | `docs`, `gone` | y |\n| **`a/src`** | `not` |\n| `one` | z |\n## Other\n| **`b`** | |\n";
        let files = ["Cargo.toml", "a/Cargo.toml", "a/src/one/x.rs", "b/c/Cargo.toml"];
        let files = files.iter().chain(&["xtask/src/docs/a.rs", "xtask/src/new/b/c.rs"]);
        let files: Vec<_> = files.map(|it| (*it).to_owned()).collect();
        let wanted = [
            "ARCHITECTURE.md: old is not there",
            "ARCHITECTURE.md: no row for the crate in b/c",
            "ARCHITECTURE.md: no row for xtask/src/new",
            "ARCHITECTURE.md: xtask/src/gone is not there",
        ];
        assert_eq!(compare(text, &files), wanted);
    }
}

//! Files that our pages name without a link.

use std::collections::{BTreeMap, BTreeSet};

use super::page::Page;

/// The folders that a page may mean a path in, besides the root: those of the crates, and those of suites.
const BASES: [&str; 11] = [
    "topo-lb-ebpf/src/",
    "topo-lb/core/src/",
    "topo-lb/kernel/src/",
    "topo-lb/kube/src/",
    "topo-lb/agent/src/",
    "topo-lb/src/",
    "topo-lb/tests/",
    "tests/tests/lab/",
    "tests/tests/datapath/",
    "tests/tests/control_plane/",
    "tests/tests/cluster/",
];
/// The ends of names of our files.
const ENDS: [&str; 3] = [".rs", ".md", ".yaml"];

/// A sentence for each path in a span of code that no file has. `files` are all files of the repository.
pub(super) fn missing(pages: &BTreeMap<String, Page>, files: &[String]) -> Vec<String> {
    let files: BTreeSet<&str> = files.iter().map(String::as_str).collect();
    let is_there = |path: &str| {
        let mut below = BASES.iter().map(|base| format!("{base}{path}"));
        files.contains(path) || below.any(|path| files.contains(&*path))
    };
    let all = pages.values().flat_map(|page| page.spans.iter().map(move |span| (page, span)));
    let missing = all.filter(|(_, (path, _))| is_path(path) && !is_there(path));
    let sentence = |(page, (path, line)): (&Page, &(String, usize))| {
        format!("{}:{line}: {path} does not exist in the repository", page.path)
    };
    missing.map(sentence).collect()
}

/// Whether a span of code is a path of a file: of the repository, with a folder and without placeholders.
fn is_path(span: &str) -> bool {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "/._-".contains(one);
    let has_folder = span.contains('/') && !span.starts_with(['/', '.']);
    has_folder && span.chars().all(is_plain) && ENDS.iter().any(|end| span.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::super::page;
    use super::*;
    use crate::workspace::Workspace;

    #[test]
    fn every_file_that_our_pages_name_is_there() {
        let workspace = Workspace::find().unwrap();
        let pages = page::all(&workspace).unwrap();
        let named = pages.values().flat_map(|page| &page.spans).filter(|(span, _)| is_path(span));
        assert!(named.count() > 100, "too few paths are seen");
        let missing = missing(&pages, &page::tracked(&workspace).unwrap());
        assert!(missing.is_empty(), "{}", missing.join("\n"));
    }

    #[test]
    fn a_file_that_moved_is_named_with_its_line() {
        let text = "# A\n`plan/a.rs` and `plan/b.rs`\n```\nplan/c.rs\n```\n`x/*.rs` `/etc/a.yaml` `d.rs` `docs/a.md`\n";
        let page = |path: &str| (path.to_owned(), Page::parse(path.to_owned(), text.to_owned()));
        let pages = BTreeMap::from([page("docs/a.md")]);
        let files = ["topo-lb/core/src/plan/a.rs", "docs/a.md"].map(str::to_owned);
        let wanted = ["docs/a.md:2: plan/b.rs does not exist in the repository"];
        assert_eq!(missing(&pages, &files), wanted);
    }
}

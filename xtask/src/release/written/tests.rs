//! What is kept in the repository, and found as soon as it is broken.

use super::*;
use crate::release::by_hand;
use crate::workspace::PLACE;

fn texts() -> Texts {
    Texts::of(&Workspace::find().unwrap()).unwrap()
}

fn faults(texts: &Texts) -> Vec<String> {
    let of = |read: Read| read.faults.into_iter().map(move |it| format!("{}: {it}", read.promise));
    texts_alone(texts).into_iter().flat_map(of).collect()
}

#[test]
fn what_a_release_promises_in_writing_is_kept() {
    let (all, _) = all(&Workspace::find().unwrap()).unwrap();
    let faults: Vec<_> = all.into_iter().flat_map(|read| read.faults).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn what_is_open_is_listed_with_its_places_until_it_is_decided() {
    let page = format!("Ours: {PLACE}.\n\n{}\n", IMAGE);
    let files = ["SECURITY.md", "README.md"].map(|path| (path.to_owned(), page.clone()));
    let texts = Texts { files: BTreeMap::from(files), ..Texts::default() };
    let place = |subject, path: &str, line| Place { subject, path: path.to_owned(), line };
    let wanted = [
        (PLACE, place(Subject::Repository, "README.md", 1)),
        (IMAGE, place(Subject::Registry, "README.md", 3)),
        (IMAGE, place(Subject::Registry, "SECURITY.md", 3)),
        (PLACE, place(Subject::Contact, "SECURITY.md", 1)),
    ];
    // To turn reports on stays, whatever the address.
    let is_open =
        |name: &str, place: &Place| name.contains("example.") || place.subject == Subject::Contact;
    let open = wanted.into_iter().filter(|(name, place)| is_open(name, place));
    assert_eq!(placeholders::by_hand(&texts), open.map(|(_, place)| place).collect::<Vec<_>>());
}

/// Path, what is there, what a hand puts in its place, what is said of it; `LINE` is where it is.
const BROKEN: [(&str, &str, &str, &str); 27] = [
    ("Cargo.toml", "\nversion = \"", "\nversion = \"9", "Cargo.lock:"),
    (
        "deploy/helm/topo-lb/Chart.yaml",
        "\nversion: ",
        "\nversion: 9",
        "one version: deploy/helm/topo-lb/Chart.yaml:",
    ),
    (
        "deploy/helm/topo-lb/Chart.yaml",
        "\nappVersion: ",
        "\nappVersion: 9",
        "Chart.yaml:LINE: the version is 9",
    ),
    (
        "deploy/helm/topo-lb/Chart.yaml",
        "\nappVersion: ",
        "\nother: ",
        "Chart.yaml names the version 1 times",
    ),
    (
        "deploy/base/kustomization.yaml",
        "newTag: ",
        "newTag: 9",
        "kustomization.yaml:LINE: the version is 9",
    ),
    (
        "deploy/components/view/view.yaml",
        "topo-lb:0",
        "topo-lb:9",
        "view.yaml:LINE: the version is 9",
    ),
    ("deploy/krew/topo.yaml", "v@VERSION@/topo", "v0.1.0/topo", "topo.yaml"),
    ("README.md", "topo-lb-0.", "topo-lb-9.", "README.md:LINE: the version is 9"),
    (
        "docs/releases.md",
        "oci-archive:topo-lb-0",
        "oci-archive:topo-lb-9",
        "docs/releases.md:LINE: the version is 9",
    ),
    (
        "Cargo.lock",
        "name = \"topo-lb\"\nversion = \"0",
        "name = \"topo-lb\"\nversion = \"9",
        "Cargo.lock:",
    ),
    ("CHANGELOG.md", "\n## 0", "\n## 9", "CHANGELOG.md:LINE: the version is 9"),
    (
        "CHANGELOG.md",
        "\n## 0",
        "\n## Unreleased\n\n## 0",
        "CHANGELOG.md:LINE: nothing of a release is unreleased",
    ),
    ("CHANGELOG.md", "\n## 0.1.0\n", "\n## 0.1.0 – 2026-02-30\n", "the heading's date is no day"),
    ("CHANGELOG.md", "\n## 0.1.0\n", "\n## 0.1.0 soon\n", "the heading is no version"),
    ("CHANGELOG.md", "\n## 0.1.0\n", "\n## 0.1.0\n\n## 0.0.1\n", "the section says nothing"),
    ("CHANGELOG.md", "The first release.", "TODO.", "CHANGELOG.md:LINE: `TODO` is not finished"),
    ("CHANGELOG.md", "`--dns`", "`--dnssec-all`", "no page explains `--dnssec-all`"),
    (
        "SECURITY.md",
        "**Supported**",
        "<your name>",
        "SECURITY.md:LINE: `<your name>` is not finished",
    ),
    (
        "deploy/base/kustomization.yaml",
        "registry.example.com/topo-lb",
        "ghcr.io/OWNER/topo-lb",
        "`OWNER` is not finished",
    ),
    (
        "deploy/base/kustomization.yaml",
        "registry.example.com/topo-lb",
        "example.org/topo-lb",
        "an example is published",
    ),
    (
        "docs/releases.md",
        "| Linux 5.10 and later |",
        "| Linux 5.4 and later |",
        "the oldest Linux that is stated is \"5.4\"",
    ),
    (
        "README.md",
        "Linux 5.10 or later",
        "Linux 5.15 or later",
        "the oldest Linux is 5.15, and 5.10",
    ),
    (
        "deploy/helm/topo-lb/Chart.yaml",
        ">=1.20.0",
        ">=1.24.0",
        "the oldest Kubernetes is 1.24, and 1.20",
    ),
    (
        "docs/releases.md",
        "with Linux 5.10, 6.1",
        "with Linux 5.10, 5.15, 6.1",
        "no run with Linux 5.15 is kept",
    ),
    ("docs/releases.md", "| arm64 |", "| riscv |", "states arm64"),
    ("docs/releases.md", "`restarts::", "`restarted::", "there is no restarted::"),
    ("tests/verifier.tsv", "\t5.10\t", "\t5.15\t", "no run with Linux 5.10 is kept"),
];

#[test]
fn whatever_is_broken_by_hand_is_found() {
    let whole = texts();
    assert_eq!(faults(&whole), Vec::<String>::new());
    for (path, from, to, wanted) in BROKEN {
        let mut texts = whole.clone();
        let text = texts.files.get_mut(path).unwrap();
        assert!(text.contains(from), "{path} has no {from:?}");
        let begin = text.find(from).unwrap() + from.len() - from.trim_start_matches('\n').len();
        let line = text[..begin].matches('\n').count() + 1;
        let wanted = wanted.replace("LINE", &line.to_string());
        *text = text.replace(from, to);
        let faults = faults(&texts);
        assert!(
            faults.iter().any(|fault| fault.contains(&wanted)),
            "{path}: {from:?} was replaced by {to:?}, and this was found: {faults:#?}"
        );
    }
}

#[test]
fn rules_and_rows_without_a_test_that_is_there_are_found() {
    let mut texts = texts();
    let page = texts.files.get_mut("docs/releases.md").unwrap();
    *page = page.replace("*run*", "*seen*");
    let faults = faults(&texts).join("\n");
    for wanted in ["the rule names no test", "the row says neither *run*, *read* nor *unknown*"] {
        assert!(faults.contains(wanted), "{wanted}: {faults}");
    }
}

#[test]
fn each_task_is_described_where_it_says() {
    let workspace = Workspace::find().unwrap();
    let (_, places) = all(&workspace).unwrap();
    for task in by_hand::tasks(&places, None) {
        let (path, anchor) = task.described.split_once('#').unwrap_or((task.described, ""));
        let text = fs::read_to_string(workspace.root.join(path)).unwrap();
        let heading = format!("## {}\n", anchor.replace('-', " "));
        let is_there = anchor.is_empty() || text.to_lowercase().contains(&heading);
        assert!(is_there, "{}: {path} has no {anchor}", task.what);
    }
}

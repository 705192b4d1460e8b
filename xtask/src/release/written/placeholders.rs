//! Nothing unfinished in what is shipped; and what stays open until a maintainer has decided.

use std::sync::LazyLock;

use regex::Regex;

use super::{Read, Texts};
use crate::workspace::PLACE;

/// Marks of unfinished work, and names that stand for others.
static UNFINISHED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\b(?:TODO|FIXME|XXX|TBD|CHANGEME|OWNER)\b|<[a-z]+(?:[ _-][a-z]+)*>")
        .expect("a constant expression")
});
/// Tags of HTML, which look like names that stand for others.
const TAGS: [&str; 4] = ["<br>", "<p>", "<sub>", "<sup>"];
/// Where something is published or reached: an example is no such place.
static PUBLISHED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"\b(?:image|repository|newName|home|homepage|url|uri|\w*[rR]unbook\w*): .*\bexample\.(?:com|org|net)"#)
        .expect("a constant expression")
});

/// The image's name until it has a registry.
pub(crate) const IMAGE: &str = "registry.example.com/topo-lb";

/// What a maintainer decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    /// The address of the repository.
    Repository,
    /// The name of the image.
    Registry,
    /// Where weaknesses are reported.
    Contact,
}

/// A line that has to change once a maintainer has decided.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) subject: Subject,
    pub(crate) path: String,
    pub(crate) line: usize,
}

fn is_shipped(path: &str) -> bool {
    let is_page = path.starts_with("docs/") && path.ends_with(".md");
    // Values that only tests of the chart read.
    let is_test = path.starts_with("deploy/helm/topo-lb/ci/");
    let is_ours =
        is_page || path.starts_with("deploy/") || ["README.md", "SECURITY.md"].contains(&path);
    is_ours && !is_test
}

/// The first mark of unfinished work in a line.
pub(super) fn unfinished(line: &str) -> Option<&str> {
    UNFINISHED.find_iter(line).map(|it| it.as_str()).find(|word| !TAGS.contains(word))
}

pub(super) fn read(texts: &Texts) -> Read {
    let mut faults = Vec::new();
    for (path, at, line) in texts.lines(is_shipped) {
        // Our pages have such names for parts of file names.
        let is_page = path.starts_with("docs/");
        if let Some(word) = unfinished(line).filter(|word| !is_page || !word.starts_with('<')) {
            faults.push(format!("{path}:{at}: `{word}` is not finished"));
        }
        let rest = line.replace(PLACE, "").replace(IMAGE, "");
        if PUBLISHED.is_match(&rest) {
            faults
                .push(format!("{path}:{at}: an example is published, and not {PLACE} or {IMAGE}"));
        }
    }
    let files = texts.files.keys().filter(|path| is_shipped(path)).count();
    let how =
        format!("{files} files of deploy/ and pages: no TODO, no name that stands for another");
    Read { promise: "nothing unfinished", how, faults }
}

/// The places of what only a maintainer can decide, in the order of subjects and files. Without the
/// names that are decided: then the constants of this program are other ones, too.
pub(super) fn by_hand(texts: &Texts) -> Vec<Place> {
    let is_one = |path: &str| is_shipped(path) || path == "xtask/src/workspace.rs";
    let open = |name: &str, text: &str| name.contains("example.") && text.contains(name);
    let place = |(path, line, text): (&str, usize, &str)| {
        let subject = match () {
            () if text.contains(PLACE) && path == "SECURITY.md" => Subject::Contact,
            () if open(PLACE, text) => Subject::Repository,
            () if open(IMAGE, text) => Subject::Registry,
            () => return None,
        };
        Some(Place { subject, path: path.to_owned(), line })
    };
    let mut places: Vec<_> = texts.lines(is_one).filter_map(place).collect();
    places.sort();
    places
}

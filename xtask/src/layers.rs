//! Imports point down: no two rooms import each other in a circle, and `topo-lb-core` stays pure. A room is a
//! file or a folder, beside the others of its folder.

use fs_err as fs;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use regex::Regex;
use walkdir::WalkDir;

use crate::process::output_of;
use crate::workspace::Workspace;

const CRATES: [&str; 8] = [
    "topo-lb-common",
    "topo-lb-ebpf",
    "topo-lb/core",
    "topo-lb/kernel",
    "topo-lb/kube",
    "topo-lb/agent",
    "topo-lb",
    "xtask",
];

/// What `topo-lb-core` must not depend on, not even through others: the kernel, the API server, tasks, terminals
/// and HTTP.
const IMPURE: [&str; 5] = ["aya", "kube", "tokio", "ratatui", "axum"];

/// The rooms of a folder, and for each the rooms beside it that it imports.
type Rooms = BTreeMap<String, BTreeSet<String>>;

static COMMENT: LazyLock<Regex> = LazyLock::new(|| Regex::new("//.*").unwrap());
static PATH: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"\b(crate|super)((?:::\w+)*)(?:::\{([^}]*))?").unwrap());
static ITEM: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(?:^|,)\s*(\w+)").unwrap());

/// The path of a file's module in its crate.
fn module(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let mut parts: Vec<_> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    parts.pop_if(|last| ["mod", "lib", "main"].contains(&last.as_str()));
    parts
}

/// The paths in the crate that the code of `module` names by `crate::` or `super::`.
fn named(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for found in PATH.captures_iter(code) {
        let from = if &found[1] == "super" { module.len().saturating_sub(1) } else { 0 };
        let mut base = module[..from].to_vec();
        for part in found[2].split("::").skip(1) {
            if part == "super" { drop(base.pop()) } else { base.push(part.to_owned()) }
        }
        match found.get(3) {
            Some(items) => all.extend(ITEM.captures_iter(items.as_str()).map(|item| {
                let mut one = base.clone();
                one.push(item[1].to_owned());
                one
            })),
            None => all.push(base),
        }
    }
    all
}

/// The rooms of every folder of these sources, by its path there.
fn folders(source: &Path) -> BTreeMap<Vec<String>, Rooms> {
    let files = WalkDir::new(source).into_iter().map(|entry| entry.unwrap().into_path());
    let files = files.filter(|path| path.extension().is_some_and(|end| end == "rs"));
    let modules = files.map(|path| (module(path.strip_prefix(source).unwrap()), path));
    let modules: Vec<_> =
        modules.filter(|(module, _)| !module.iter().any(|it| it == "tests")).collect();
    let is_room = |path: &[String]| modules.iter().any(|(module, _)| module.starts_with(path));
    let mut folders: BTreeMap<Vec<String>, Rooms> = BTreeMap::new();
    for (module, file) in &modules {
        let text = fs::read_to_string(file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        for path in named(&COMMENT.replace_all(code, ""), module) {
            let common = module.iter().zip(&path).take_while(|(own, other)| own == other).count();
            let (Some(from), Some(to)) = (module.get(common), path.get(common)) else { continue };
            if is_room(&path[..=common]) {
                let rooms = folders.entry(module[..common].to_vec()).or_default();
                rooms.entry(from.clone()).or_default().insert(to.clone());
            }
        }
    }
    folders
}

/// The rooms in circles, and those between two circles.
fn circles(mut rooms: Rooms) -> Rooms {
    loop {
        let before = rooms.len();
        let (there, imported): (BTreeSet<_>, BTreeSet<_>) =
            (rooms.keys().cloned().collect(), rooms.values().flatten().cloned().collect());
        rooms.retain(|room, imports| imported.contains(room) && !imports.is_disjoint(&there));
        if rooms.len() == before {
            return rooms;
        }
    }
}

#[test]
fn no_rooms_import_each_other_in_a_circle() {
    let root = Workspace::find().unwrap().root;
    let mut found = Vec::new();
    for name in CRATES {
        let source = Path::new(name).join("src");
        for (folder, rooms) in folders(&root.join(&source)) {
            let place = source.join(folder.iter().collect::<PathBuf>());
            let circles = circles(rooms);
            if !circles.is_empty() {
                found.push(format!("{}: {circles:#?}", place.display()));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn a_circle_is_found_whatever_is_above_and_below_it() {
    let rooms = |all: &[(&str, &str)]| {
        let mut rooms = Rooms::new();
        for (from, to) in all {
            rooms.entry((*from).to_owned()).or_default().insert((*to).to_owned());
        }
        circles(rooms).into_keys().collect::<Vec<_>>()
    };
    assert_eq!(
        rooms(&[("top", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "ground")]),
        ["a", "b", "c"]
    );
    assert!(rooms(&[("top", "a"), ("top", "b"), ("a", "b")]).is_empty());
    let names = |code| named(code, &["app".to_owned(), "kernel".to_owned()]);
    assert_eq!(names("use crate::plan::Step;"), [["plan", "Step"]]);
    assert_eq!(names("use super::{retry, start::Start};"), [["app", "retry"], ["app", "start"]]);
    assert_eq!(names("super::super::health::Check"), [["health", "Check"]]);
}

#[test]
fn the_core_stays_pure() {
    let workspace = Workspace::find().unwrap();
    let mut command = workspace.command(workspace.cargo_path());
    command.args(["tree", "--offline", "--locked", "--package=topo-lb-core", "--edges=normal"]);
    command.args(["--prefix=none", "--format={lib}"]);
    let libraries = output_of(&mut command).expect("cargo tree");
    let libraries: BTreeSet<&str> = libraries.lines().collect();
    assert!(libraries.contains("topo_lb_common"), "{libraries:?}");
    let impure: Vec<_> = IMPURE.iter().filter(|name| libraries.contains(**name)).collect();
    assert!(impure.is_empty(), "topo-lb-core depends on {impure:?}");
}

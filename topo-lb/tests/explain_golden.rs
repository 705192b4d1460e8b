//! What `explain` says of the clusters that two real control planes described, word for word.
//!
//! `TOPO_LB_WRITE_GOLDEN=1 cargo test -p topo-lb --test explain_golden` writes the expected output
//! anew; the diff is then to be read.

use std::path::{Path, PathBuf};

use topo_lb::cluster::{State, Update};
use topo_lb::explain;
use topo_lb::source::object::{self, Object};
use topo_lb::topology::Scope;

const NODES: [&str; 3] = ["kind-control-plane", "kind-worker", "kind-worker2"];

fn fixture(version: &str, this_node: &str) -> State {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join(format!("../tests/fixtures/kubernetes-{version}.json"));
    let text = std::fs::read_to_string(&path).unwrap();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut state = State::default();
    for item in list["items"].as_array().unwrap() {
        let update = match object::parse(item.clone()).unwrap() {
            Object::Service(service) => Update::Service(service),
            Object::Slice(slice, _) => Update::Slice(slice),
            Object::Node(node) => Update::Node(node),
            Object::Other => continue,
        };
        let _ = state.apply(update, this_node);
    }
    state
}

fn golden(name: &str, actual: &str) -> Result<(), String> {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("TOPO_LB_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, actual).unwrap();
        return Ok(());
    }
    let expected = std::fs::read_to_string(&path).map_err(|error| format!("{name}: {error}"))?;
    let difference = expected.lines().zip(actual.lines()).position(|(old, new)| old != new);
    match difference {
        _ if expected == actual => Ok(()),
        Some(line) => Err(format!(
            "{name}, line {}:\n  expected {}\n  actual   {}",
            line + 1,
            expected.lines().nth(line).unwrap_or_default(),
            actual.lines().nth(line).unwrap_or_default(),
        )),
        None => Err(format!("{name}: one of the two ends early")),
    }
}

#[test]
fn explain_says_of_the_fixtures_what_it_always_said() {
    let mut wrong = Vec::new();
    for version in ["1.36", "1.20"] {
        for node in NODES {
            let state = fixture(version, node);
            let report = explain::report(&state, node, Scope::All, &[]);
            let json = serde_json::to_string_pretty(&report).unwrap() + "\n";
            wrong.extend(golden(&format!("{version}-{node}.json"), &json).err());
            let table = explain::table(&report, false);
            wrong.extend(golden(&format!("{version}-{node}.txt"), &table).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

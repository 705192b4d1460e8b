//! The exact output of `explain`, `lint` and `plan` for the clusters of two real control planes; `migrate`
//! compares its own in the same way.
//!
//! `TOPO_LB_WRITE_GOLDEN=1 cargo test -p topo-lb --test command` rewrites the expected
//! output; review the diff.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::run::{run, text};
use serde::Serialize;
use topo_lb_core::cluster::{Change, KnownNodes, ServiceId, State, Update};
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::label::ZONE;
use topo_lb_core::what_if::{self, Proxied};
use topo_lb_core::{explain, lint};
use topo_lb_kube::source::file;

const NODES: [&str; 3] = ["kind-control-plane", "kind-worker", "kind-worker2"];

fn state(path: &str, this_node: &str) -> State {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut state = State::default();
    let listing = file::read(&path).unwrap();
    assert_eq!(listing.faults, []);
    for update in listing.updates {
        let _ = state.apply(update, this_node);
    }
    state
}

fn json(actual: &impl Serialize) -> String {
    serde_json::to_string_pretty(actual).unwrap() + "\n"
}

/// Compares with the file of this name, or writes it.
pub(crate) fn golden(name: &str, actual: &str) -> Result<(), String> {
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
            let state = state(&format!("../tests/fixtures/kubernetes-{version}.json"), node);
            let report = explain::report(&state, node, Scope::All, &[]);
            wrong.extend(golden(&format!("{version}-{node}.json"), &json(&report)).err());
            let table = explain::table(&report, false);
            wrong.extend(golden(&format!("{version}-{node}.txt"), &table).err());
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const REASONS: &str = "tests/golden/reasons.yaml";

#[test]
fn every_reason_reads_as_it_always_did() {
    let mut wrong = Vec::new();
    for node in ["north-1", "bare", "nobody"] {
        let state = state(REASONS, node);
        let report = explain::report(&state, node, Scope::All, &[]);
        wrong.extend(golden(&format!("reasons-{node}.txt"), &explain::table(&report, false)).err());
    }
    let opted_in = explain::report(&state(REASONS, "north-1"), "north-1", Scope::OptIn, &[]);
    wrong.extend(golden("reasons-opt-in.txt", &explain::table(&opted_in, false)).err());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_scope_is_named_where_it_decides_and_was_not_given() {
    let manifests = format!("{}/{REASONS}", env!("CARGO_MANIFEST_DIR"));
    let said = |more: &[&str]| {
        let always = ["explain", "--manifests", &manifests, "--node", "north-1"];
        text(&run(&[&always[..], more].concat(), "").stderr).to_owned()
    };
    assert_eq!(
        said(&["demo/claims-first"]),
        "topo-lb: shown as agents with --scope all decide; those with --scope opt-in leave 1 of these \
         Service ports to kube-proxy\n"
    );
    assert_eq!(said(&["demo/claims-first", "--scope", "all"]), "");
    assert_eq!(said(&["demo/strict-rack"]), "");
    assert_eq!(said(&["demo/claims-first", "--all-nodes"]), said(&["demo/claims-first"]));
}

#[test]
fn services_that_wait_for_other_nodes_are_neither_routed_nor_refused() {
    let mut state = state(REASONS, "north-1");
    let _ = state.apply(Update::KnownNodes(KnownNodes::Own), "north-1");
    let _ =
        state.apply(Update::Node(Change::Listed(Vec::new(), vec!["north-1".into()])), "north-1");
    let report = explain::report(&state, "north-1", Scope::All, &[]);
    golden("own-node.txt", &explain::table(&report, false)).unwrap();
    let id = ServiceId { namespace: "demo".into(), name: "strict-rack".into() };
    let waiting = explain::report(&state, "north-1", Scope::All, &[id]);
    golden("own-node.json", &json(&waiting)).unwrap();
}

#[test]
fn lint_says_of_every_cluster_what_it_always_said() {
    let mut wrong = Vec::new();
    for (name, path) in [
        ("lint-1.36", "../tests/fixtures/kubernetes-1.36.json"),
        ("lint-1.20", "../tests/fixtures/kubernetes-1.20.json"),
        ("lint-reasons", REASONS),
    ] {
        let findings = lint::findings(&state(path, ""), Scope::All);
        wrong.extend(golden(&format!("{name}.txt"), &lint::table(&findings, false)).err());
        wrong.extend(golden(&format!("{name}.json"), &json(&findings)).err());
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_node_is_in_the_spread() {
    let state = state(REASONS, "");
    let id = |name: &str| ServiceId { namespace: "demo".into(), name: name.into() };
    let mut text = String::new();
    for name in ["waterfall", "lone-pod", "strict-rack", "pool", "hinted", "local", "dual", "warm"]
    {
        text += &explain::spread_table(&explain::spread(&state, Scope::All, &id(name)), false);
        text.push('\n');
    }
    golden("spread.txt", &text).unwrap();
    let lone = explain::spread(&state, Scope::All, &id("lone-pod"));
    golden("spread.json", &json(&lone)).unwrap();
    assert!(explain::spread(&state, Scope::All, &id("nowhere")).is_empty());
}

/// The clusters before and after these settings.
fn planned(path: &str, settings: &[&str]) -> (Proxied, Proxied) {
    let before = state(path, "");
    let mut after = before.clone();
    let settings: Vec<_> = settings.iter().map(|text| text.parse().unwrap()).collect();
    what_if::apply(&mut after, &settings).unwrap();
    (Proxied::of(before, Scope::All), Proxied::of(after, Scope::All))
}

#[test]
fn plan_says_of_every_change_what_it_always_said() {
    let mut wrong = Vec::new();
    let asked = [ServiceId { namespace: "default".into(), name: "dual".into() }].into();
    for version in ["1.36", "1.20"] {
        let (before, after) = planned(
            &format!("../tests/fixtures/kubernetes-{version}.json"),
            &[
                "default/svc-ud1-without-topology=topology-keys:topology.kubernetes.io/zone",
                "default/svc-rack=spill:10%",
                "default/svc-zone-strict=handle:false",
            ],
        );
        let report = what_if::compare(&before, &after, ZONE, &asked, None);
        wrong.extend(golden(&format!("plan-{version}.txt"), &what_if::table(&report, false)).err());
        wrong.extend(golden(&format!("plan-{version}.json"), &json(&report)).err());
    }
    let keys = "demo/lone-pod=topology-keys:kubernetes.io/hostname,topology.kubernetes.io/zone";
    let (before, after) = planned(REASONS, &[keys]);
    let report = what_if::compare(&before, &after, ZONE, &BTreeSet::new(), None);
    wrong.extend(golden("plan-reasons.txt", &what_if::table(&report, false)).err());
    let everything = Proxied::of(state(REASONS, ""), Scope::OptIn);
    let nothing = BTreeSet::new();
    let report = what_if::compare(&before, &everything, "example.com/rack", &nothing, None);
    wrong.extend(golden("plan-opt-in.txt", &what_if::table(&report, false)).err());
    let [newer, older] = ["1.36", "1.20"].map(|version| {
        let path = format!("../tests/fixtures/kubernetes-{version}.json");
        Proxied::of(state(&path, ""), Scope::All)
    });
    let report = what_if::compare(&newer, &older, ZONE, &nothing, None);
    wrong.extend(golden("plan-two-clusters.txt", &what_if::table(&report, false)).err());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn colours_change_nothing_but_colours() {
    let state = state(REASONS, "north-1");
    let report = explain::report(&state, "north-1", Scope::All, &[]);
    let coloured = explain::table(&report, true);
    assert!(coloured.contains('\u{1b}'));
    let mut plain = String::new();
    let mut parts = coloured.split('\u{1b}');
    plain += parts.next().unwrap();
    for part in parts {
        plain += part.split_once('m').unwrap().1;
    }
    let trimmed: Vec<_> = plain.lines().map(str::trim_end).collect();
    let expected = explain::table(&report, false);
    assert_eq!(trimmed, expected.lines().collect::<Vec<_>>());
}

#[test]
fn what_was_asked_for_and_is_not_there_is_said() {
    let state = state("../tests/fixtures/kubernetes-1.36.json", "kind-worker");
    let id = |name: &str| ServiceId { namespace: "default".into(), name: name.into() };
    let ids = [id("svc-ud1"), id("nope"), id("headless"), id("svc-ud1")];
    let report = explain::report(&state, "kind-worker", Scope::All, &ids);
    assert_eq!(report.services.len(), 1);
    assert_eq!(report.unknown, [id("nope")]);
    assert_eq!(report.skipped.len(), 1);
    let table = explain::table(&report, false);
    assert!(table.contains("default/nope: there is no such Service"), "{table}");
    assert!(table.contains("default/headless: skipped, headless (`clusterIP: None`)"), "{table}");
}

#[test]
fn the_guide_shows_what_is_really_printed() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(here.join("../docs/topology.md")).unwrap();
    let read = |name| std::fs::read_to_string(here.join("tests/golden").join(name)).unwrap();
    let printed = read("reasons-north-1.txt") + &read("spread.txt") + &read("plan-reasons.txt");
    let shown: Vec<_> = guide.split("```\n").filter(|block| block.starts_with("demo/")).collect();
    assert_eq!(shown.len(), 3);
    for block in shown {
        assert!(printed.contains(block), "the guide shows otherwise:\n{block}");
    }
}

/// The end of the sentence says whether the policy holds here.
#[test]
fn a_trial_with_a_long_name_is_told_to_its_end() {
    let name = "n".repeat(90);
    let manifests = std::fs::read_to_string(REASONS).unwrap()
        + &format!(
            "\n---\napiVersion: topo-lb.io/v1alpha1\nkind: TopologyPolicy\nmetadata: {{name: {name}, \
             namespace: demo}}\nspec: {{topologyKeys: ['*'], ramp: '80%'}}\n"
        );
    let arguments = ["explain", "--manifests", "-", "--node", "north-1", "demo/local"];
    let done = run(&arguments, &manifests);
    let told = text(&done.stdout);
    let trial = told.lines().find(|line| line.contains(&name)).unwrap_or_else(|| panic!("{told}"));
    assert!(trial.starts_with("  trial ") && trial.ends_with('%'), "{trial}");
    assert!(trial.contains("its ramp is 80%, and this node is at "), "{trial}");
}

//! Takes any bytes as manifests: reads them, decides and explains for every node, lints, plans the maps,
//! and compares two scopes; and as a query to the resolver.
//! Nothing may panic, hang, or use disproportionate memory, and after a plan's steps nothing may be
//! left to plan.
//!
//! Separate from the target, so that the seeds can be tested without a fuzzer.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use topo_lb::cluster::{ServiceId, State};
use topo_lb::dns::answer::answer;
use topo_lb::dns::names::Names;
use topo_lb::dns::transport::Transport;
use topo_lb::plan::{Capacity, Installed};
use topo_lb::reconcile::Reconciler;
use topo_lb::topology::Scope;
use topo_lb::topology::named::Named;
use topo_lb::{explain, lint, source, what_if};

/// The most nodes to decide for, besides one that never exists.
const NODES: usize = 4;

/// Takes the bytes as a query to the resolver as well.
fn ask(bytes: &[u8]) {
    let id = ServiceId { namespace: "s".into(), name: "d".into() };
    let mut names = Names::default();
    names.set(&id, "cluster.local", Some(Named { v4: Some(Vec::new()), v6: None }));
    if let Some(answer) = answer(bytes, Transport::Udp, &names, || 0) {
        assert_eq!(answer.bytes[..2], bytes[..2], "the id of another query");
    }
}

/// Runs one input: its first byte selects YAML or JSON. Returns whether the rest could be read.
pub(crate) fn one(bytes: &[u8]) -> bool {
    ask(bytes);
    let Some((&first, content)) = bytes.split_first() else { return false };
    let name = if first % 2 == 0 { "fuzz.yaml" } else { "fuzz.json" };
    let Ok(listing) = source::file::parse(Path::new(name), content) else { return false };
    let source::Listing { updates, faults, clients } = listing;
    let clients = clients.unwrap_or_default();
    let mut state = State::default();
    for update in updates.clone() {
        let _ = state.apply(update, "");
    }
    let all: Vec<ServiceId> = state.services().cloned().collect();
    let mut nodes: Vec<String> =
        state.nodes().take(NODES).map(|(name, _)| name.to_owned()).collect();
    nodes.push("no such node".to_owned());

    for scope in [Scope::All, Scope::OptIn] {
        for node in &nodes {
            let report = explain::report(&state, node, scope, &all);
            let _ = explain::table(&report, true);
        }
        for id in &all {
            let _ = explain::spread_table(&explain::spread(&state, scope, id), false);
        }
    }
    let _ = lint::table(
        &[
            lint::unreadable(&faults),
            lint::meshed(&clients.meshed, &[]),
            lint::unclear(&clients.unclear),
            lint::findings(&state),
        ]
        .concat(),
        true,
    );

    let [before, after] =
        [Scope::OptIn, Scope::All].map(|scope| what_if::Proxied::of(state.clone(), scope));
    let report = what_if::compare(&before, &after, "rack", &all.iter().cloned().collect(), None);
    let _ = what_if::table(&report, true);

    for node in nodes {
        let mut reconciler = Reconciler::new(Arc::from(node), Scope::All, false);
        for update in &updates {
            reconciler.observe(update.clone());
        }
        let mut installed = Installed::new(Capacity::default());
        reconciler.expect_all(&installed);
        while !reconciler.settled() {
            let plan = reconciler.plan(&installed);
            plan.steps.iter().for_each(|step| installed.record(step));
            reconciler.carried_out(&plan);
        }
        reconciler.expect_all(&installed);
        let again = reconciler.plan(&installed);
        assert_eq!(again.steps, [], "a plan that was carried out leaves something to do");
        let named: BTreeSet<_> = installed.placed().map(|(_, placed)| placed.entry.index).collect();
        assert!(named.iter().all(|&index| installed.indexes().name(index).is_some()));
    }
    true
}

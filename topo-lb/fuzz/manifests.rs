//! Takes any bytes as manifests: reads them, decides and explains for every node, lints, plans the maps,
//! and compares two scopes; and as a query to the resolver, a stream of queries, and an answer to one.
//! Nothing may panic, hang, or use disproportionate memory, and after a plan's steps nothing may be
//! left to plan.
//!
//! Separate from the target, so that the seeds can be tested without a fuzzer.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use topo_lb_agent::dns::answer::{answer, is_answer};
use topo_lb_agent::dns::framing::{Messages, framed};
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::dns::names::Names;
use topo_lb_core::dns::transport::Transport;
use topo_lb_core::plan::{Capacity, Installed};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::named::{Group, Named};
use topo_lb_core::{explain, lint, what_if};
use topo_lb_kube::source;

/// The most nodes to decide for, besides one that never exists.
const NODES: usize = 4;

/// Names with addresses of both families, of one, of none, and with more than an answer has room for.
fn names() -> Names {
    let four = |count| (1..=count).map(|last| IpAddr::from([10, 0, 0, last])).collect();
    let six =
        |count| (1..=count).map(|last| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, last])).collect();
    let group = |addresses| Some(vec![Group { share: 1.0, addresses }]);
    let mut names = Names::default();
    for (name, v4, v6) in [
        ("d", group(four(3)), group(six(2))),
        ("four", group(four(1)), None),
        ("none", Some(Vec::new()), None),
        ("large", group(four(200)), group(six(200))),
    ] {
        let id = ServiceId { namespace: "s".into(), name: name.into() };
        names.set(&id, "cluster.local", Some(Named { v4, v6 }));
    }
    names
}

static NAMES: LazyLock<Names> = LazyLock::new(names);

/// Takes the bytes as a query to the resolver as well: as a datagram, as a part of a stream, and as what the
/// cluster DNS sends. Returns whether the resolver answers.
pub(crate) fn ask(bytes: &[u8]) -> bool {
    let mut is_answered = false;
    for (transport, most) in [(Transport::Udp, 1_232), (Transport::Tcp, usize::from(u16::MAX))] {
        let Some(answer) = answer(bytes, transport, &NAMES, || 0) else { continue };
        assert!(is_answer(&answer.bytes, bytes), "it answers another query");
        assert!(answer.bytes.len() <= most, "{} bytes", answer.bytes.len());
        is_answered = true;
    }
    let (first, second) = bytes.split_at(bytes.len() / 2);
    assert!(!is_answer(first, second) || first[..2] == second[..2]);

    // However a stream is cut, it has the same messages.
    let taken = |pieces: &[&[u8]]| {
        let (mut messages, mut all) = (Messages::default(), Vec::new());
        for piece in pieces {
            messages.room().extend_from_slice(piece);
            while let Some(message) = messages.take() {
                all.push(message);
            }
        }
        assert!(all.iter().all(|message| framed(&message[2..]).as_ref() == Some(message)));
        (all, messages.rest().to_vec())
    };
    let (messages, rest) = taken(&[bytes]);
    assert_eq!([messages.concat(), rest.clone()].concat(), bytes);
    for message in &messages {
        is_answered |= answer(&message[2..], Transport::Tcp, &NAMES, || 0).is_some();
    }
    assert_eq!(taken(&[first, second]), (messages, rest));
    is_answered
}

/// Runs one input: its first byte selects YAML or JSON. Returns whether the rest could be read.
pub(crate) fn one(bytes: &[u8]) -> bool {
    ask(bytes);
    let Some((&first, content)) = bytes.split_first() else { return false };
    let name = if first % 2 == 0 { "fuzz.yaml" } else { "fuzz.json" };
    let Ok(listing) = source::file::parse(Path::new(name), content) else { return false };
    let source::Listing { updates, faults, clients, unread } = listing;
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
            lint::unreadable(faults.iter().map(source::Fault::parts)),
            lint::meshed(&clients.meshed, &[]),
            lint::unclear(&clients.unclear),
            lint::unread(&unread, &state),
            lint::findings(&state, Scope::All),
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
            reconciler.carried_out(&plan, &installed);
        }
        reconciler.expect_all(&installed);
        let again = reconciler.plan(&installed);
        assert_eq!(again.steps, [], "a plan that was carried out leaves something to do");
        let named: BTreeSet<_> = installed.placed().map(|(_, placed)| placed.entry.index).collect();
        assert!(named.iter().all(|&index| installed.indexes().name(index).is_some()));
    }
    true
}

//! How long deciding takes, and how much memory a large cluster does:
//!
//! ```text
//! cargo run --release --example explain_many -- [SERVICES [ENDPOINTS-EACH [NODES]]]
//! ```
//!
//! 10,000 Services must be explained for one node in less than a second.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Instant;

use topo_lb::cluster::service::{PolicySources, Protocol};
use topo_lb::cluster::{
    Node, Service, ServiceId, ServicePort, Slice, SliceEndpoint, SliceId, SlicePort, State, Update,
};
use topo_lb::topology::{self, Scope};
use topo_lb::{explain, lint};

const HERE: &str = "node-0";
const KEYS: &str = "kubernetes.io/hostname,example.com/rack,topology.kubernetes.io/zone,*";

fn main() {
    let mut numbers = std::env::args().skip(1).map(|text| {
        text.parse::<u32>().unwrap_or_else(|error| {
            eprintln!("{text:?} is no number: {error}");
            std::process::exit(2)
        })
    });
    let services = numbers.next().unwrap_or(10_000);
    let each = numbers.next().unwrap_or(10);
    let nodes = numbers.next().unwrap_or(1_000).max(1);

    let empty = resident_kilobytes();
    let mut state = State::default();
    let applied = Instant::now();
    for index in 0..nodes {
        let _ = state.apply(Update::Node(node(index)), HERE);
    }
    for index in 0..services {
        let _ = state.apply(Update::Service(service(index)), HERE);
        let _ = state.apply(Update::Slice(slice(index, each, nodes)), HERE);
    }
    println!("{services} Services of {each} endpoints on {nodes} nodes");
    println!("  applied one by one   {:>9.1?}", applied.elapsed());
    println!(
        "  state                {:>7} kB resident",
        resident_kilobytes().saturating_sub(empty)
    );

    let routed = Instant::now();
    let routes: usize =
        state.services().map(|id| topology::routes(&state, HERE, Scope::All, id).len()).sum();
    println!("  routes               {:>9.1?}  ({routes} of them)", routed.elapsed());

    let explained = Instant::now();
    let report = explain::report(&state, HERE, Scope::All, &[]);
    println!(
        "  explained            {:>9.1?}  ({} ports)",
        explained.elapsed(),
        report.services.len()
    );

    let linted = Instant::now();
    let findings = lint::findings(&state);
    println!("  linted               {:>9.1?}  ({} findings)", linted.elapsed(), findings.len());

    let one = Instant::now();
    let mut moved = slice(0, each, nodes);
    if let Some(first) = moved.endpoints.first_mut() {
        first.ready = !first.ready;
    }
    let changed = state.apply(Update::Slice(moved), HERE);
    for id in &changed.services {
        let _ = topology::routes(&state, HERE, Scope::All, id);
    }
    println!(
        "  one slice changed    {:>9.1?}  ({} Service)",
        one.elapsed(),
        changed.services.len()
    );

    let other = Instant::now();
    let mut relabelled = node(1);
    relabelled.labels.insert("example.com/rack".into(), "rack-moved".into());
    let changed = state.apply(Update::Node(relabelled), HERE);
    for id in &changed.services {
        let _ = topology::routes(&state, HERE, Scope::All, id);
    }
    let count = changed.services.len();
    println!("  one node relabelled  {:>9.1?}  ({count} Services)", other.elapsed());
}

fn node(index: u32) -> Node {
    let labels = [
        ("kubernetes.io/hostname", format!("node-{index}")),
        ("topology.kubernetes.io/zone", format!("zone-{}", index % 3)),
        ("topology.kubernetes.io/region", "region".to_owned()),
        ("example.com/rack", format!("rack-{}", index / 20)),
    ];
    let labels = labels.map(|(key, value)| (key.into(), value.into())).into();
    Node { name: format!("node-{index}").into(), labels }
}

fn id(index: u32) -> ServiceId {
    ServiceId {
        namespace: format!("ns-{}", index % 50).into(),
        name: format!("svc-{index}").into(),
    }
}

fn service(index: u32) -> Service {
    Service {
        id: id(index),
        cluster_ips: vec![Ipv4Addr::from_bits(0x0a60_0000 + index).into()],
        ports: vec![ServicePort { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
        policy: PolicySources {
            topology_keys: index.is_multiple_of(2).then(|| KEYS.into()),
            ..PolicySources::default()
        },
        internal_local: false,
        external_local: false,
        affinity_seconds: None,
        skipped: None,
    }
}

fn slice(index: u32, each: u32, nodes: u32) -> Slice {
    let endpoint = |number: u32| {
        let serial = index * each + number;
        let on = serial.wrapping_mul(2_654_435_761) % nodes;
        let zone = format!("zone-{}", on % 3);
        SliceEndpoint {
            address: Ipv4Addr::from_bits(0x0b00_0000 + serial).into(),
            node: Some(format!("node-{on}").into()),
            labels: BTreeMap::from([("topology.kubernetes.io/zone".into(), zone.into())]),
            ready: true,
            serving: true,
            terminating: false,
            for_nodes: Vec::new(),
            for_zones: Vec::new(),
        }
    };
    let ServiceId { namespace, name } = id(index);
    Slice {
        id: SliceId { namespace, name: format!("{name}-abcde").into() },
        service: Some(id(index)),
        ports: vec![SlicePort { name: "http".into(), port: 8080, protocol: Protocol::Tcp }],
        endpoints: (0..each).map(endpoint).collect(),
        triggered: None,
    }
}

/// Of this process, in kB; zero where the kernel does not say.
fn resident_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

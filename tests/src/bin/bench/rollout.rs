//! A rolling update of one large Service, as all agents of a large cluster live through it: their
//! pure part, in this process.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use topo_lb::cluster::service::{PolicySources, Protocol};
use topo_lb::cluster::{
    Node, Service, ServiceId, ServicePort, Slice, SliceEndpoint, SliceId, SlicePort, Update,
};
use topo_lb::plan::{Capacity, Installed};
use topo_lb::reconcile::Reconciler;
use topo_lb::topology::Scope;

use crate::ground::Effort;
use crate::result::Figure;
use crate::sample::Sample;

const NODES: u32 = 5_000;
const SLICE: u32 = 100;
const KEYS: &str = "kubernetes.io/hostname,topology.kubernetes.io/zone,*";

/// Replaces every pod of Services of several sizes, on some of the nodes; the figures are for all.
pub(crate) fn measure(effort: Effort, say: &dyn Fn(&str)) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for &pods in effort.of(&[100, 200][..], &[100, 300, 1_000]) {
        say(&format!("rolling update of {pods} pods on {NODES} nodes"));
        let sampled = effort.of(3, 20);
        let mut seconds = Sample::default();
        let mut events = 0;
        for number in 0..sampled {
            let here = number * (NODES / sampled);
            let (spent, seen) = one_node(here, pods);
            seconds.add(spent);
            events = seen;
        }
        let with = |figure: Figure| {
            figure
                .with("nodes", NODES)
                .with("pods", pods)
                .with("events", events)
                .with("nodes_simulated", sampled)
        };
        let mut each = Sample::default();
        each.add(seconds.median() * 1e3 / f64::from(events));
        figures.push(with(Figure::new("rollout_event_ms", "ms", &each)));
        figures.push(with(Figure::new("rollout_node_seconds", "s", &seconds)));
        let all = seconds.median() * f64::from(NODES);
        figures.push(with(Figure::single("rollout_cluster_seconds", "s", all)));
    }
    Ok(figures)
}

/// Seconds that the agent of one node spends, and the events that it sees.
fn one_node(here: u32, pods: u32) -> (f64, u32) {
    let mut reconciler = Reconciler::new(name(here), Scope::All, false);
    let mut installed = Installed::new(Capacity::default());
    for index in 0..NODES {
        reconciler.observe(Update::Node(node(index)));
    }
    reconciler.observe(Update::Service(service()));
    let mut slices: Vec<Slice> = (0..pods.div_ceil(SLICE)).map(|it| slice(it, pods)).collect();
    for slice in &slices {
        reconciler.observe(Update::Slice(slice.clone()));
    }
    settle(&mut reconciler, &mut installed);

    let mut spent = 0.0;
    let mut events = 0;
    for pod in 0..pods {
        let (slice, place) = ((pod / SLICE) as usize, (pod % SLICE) as usize);
        // It terminates; its successor comes by another address on another node; it is ready.
        for step in 0..3 {
            let endpoint = &mut slices[slice].endpoints[place];
            match step {
                0 => (endpoint.ready, endpoint.terminating) = (false, true),
                1 => *endpoint = successor(pod, pods),
                _ => (endpoint.ready, endpoint.serving) = (true, true),
            }
            let update = Update::Slice(slices[slice].clone());
            let begun = Instant::now();
            reconciler.observe(update);
            settle(&mut reconciler, &mut installed);
            spent += begun.elapsed().as_secs_f64();
            events += 1;
        }
    }
    (spent, events)
}

fn settle(reconciler: &mut Reconciler, installed: &mut Installed) {
    while !reconciler.settled() {
        let plan = reconciler.plan(installed);
        for step in &plan.steps {
            installed.record(step);
        }
        reconciler.carried_out(&plan);
    }
}

fn name(index: u32) -> Arc<str> {
    format!("node-{index}").into()
}

fn node(index: u32) -> Node {
    let labels = [
        ("kubernetes.io/hostname", format!("node-{index}")),
        ("topology.kubernetes.io/zone", format!("zone-{}", index % 3)),
        ("topology.kubernetes.io/region", "region".to_owned()),
    ];
    let labels = labels.map(|(key, value)| (key.into(), value.into())).into();
    Node { name: name(index), labels }
}

fn id() -> ServiceId {
    ServiceId { namespace: "shop".into(), name: "cart".into() }
}

fn service() -> Service {
    Service {
        id: id(),
        cluster_ips: vec![Ipv4Addr::new(10, 96, 0, 1).into()],
        ports: vec![ServicePort { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
        policy: PolicySources { topology_keys: Some(KEYS.into()), ..PolicySources::default() },
        internal_local: false,
        external_local: false,
        affinity_seconds: None,
        skipped: None,
    }
}

fn slice(number: u32, pods: u32) -> Slice {
    let numbers = number * SLICE..pods.min((number + 1) * SLICE);
    Slice {
        id: SliceId { namespace: "shop".into(), name: format!("cart-{number}").into() },
        service: Some(id()),
        ports: vec![SlicePort { name: "http".into(), port: 8080, protocol: Protocol::Tcp }],
        endpoints: numbers.map(|pod| endpoint(pod, pod, true)).collect(),
        triggered: None,
    }
}

/// Serial numbers begin after those of the pods that are replaced.
fn successor(pod: u32, pods: u32) -> SliceEndpoint {
    endpoint(pods + pod, pod + 1, false)
}

fn endpoint(serial: u32, place: u32, ready: bool) -> SliceEndpoint {
    let on = place.wrapping_mul(2_654_435_761) % NODES;
    SliceEndpoint {
        address: Ipv4Addr::from_bits(Ipv4Addr::new(10, 128, 0, 0).to_bits() + serial).into(),
        node: Some(name(on)),
        labels: [("topology.kubernetes.io/zone".into(), format!("zone-{}", on % 3).into())].into(),
        ready,
        serving: ready,
        terminating: false,
        for_nodes: Vec::new(),
        for_zones: Vec::new(),
    }
}

//! Stand-ins for the agents of a cluster, behind a fake API server: each counts what clients of its node
//! would do by the real decisions. For clusters of any size, and for agents that lie or are away.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};
use topo_lb_agent::metrics::zones::named;
use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::{ServiceId, State};
use topo_lb_core::topology::label::ZONE;
use topo_lb_core::topology::{Scope, decide};

use crate::population::{Population, update};
use topo_lb_fake_api::{CLUSTER_POLICIES, FakeApi, NODES, SERVICES, SLICES};

/// The path of the agents' Pods.
pub const PODS: &str = "/api/v1/namespaces/topo-lb/pods";

/// What the clients of one node do to one Service.
#[derive(Clone, Debug)]
pub struct Demand {
    /// The node.
    pub node: String,
    /// Its namespace and name.
    pub service: (String, String),
    /// Connections a second.
    pub connections: f64,
    /// Bytes that each connection moves, half of them in each direction.
    pub bytes: f64,
}

/// What the clients of a node do to a Service.
struct Counted {
    /// Connections a second, by distance.
    connections: [f64; Locality::ALL.len()],
    /// Connections a second that are refused.
    refused: f64,
    /// Bytes of a connection.
    bytes: f64,
    /// Bytes a second, by the zone of the endpoint.
    zones: BTreeMap<String, f64>,
}

/// What the agent of a node counts.
#[derive(Default)]
struct OfNode {
    zone: String,
    /// With namespace and name.
    services: Vec<(String, String, Counted)>,
}

/// Starts an API server with these objects, an agent on each Node, and counters that begin now.
///
/// # Errors
/// An object is none that agents read, or the server does not start.
pub fn cluster(objects: Vec<Value>, demands: &[Demand]) -> Result<FakeApi> {
    cluster_as(objects, demands, |text| text)
}

/// The same with agents that tell their counts in another way.
///
/// # Errors
/// As [`cluster`].
pub fn cluster_as(
    objects: Vec<Value>,
    demands: &[Demand],
    tell: fn(String) -> String,
) -> Result<FakeApi> {
    let mut state = State::default();
    let mut by_path: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for object in objects {
        let path = match object["kind"].as_str() {
            Some("Node") => NODES,
            Some("Service") => SERVICES,
            _ => SLICES,
        };
        let _ = state.apply(update(object.clone())?, "");
        by_path.entry(path).or_default().push(object);
    }
    let mut counted: BTreeMap<String, OfNode> = BTreeMap::new();
    for demand in demands {
        let (namespace, name) = demand.service.clone();
        let id = ServiceId { namespace: (&*namespace).into(), name: (&*name).into() };
        let counts = of(&state, demand, &id);
        let of_node = counted.entry(demand.node.clone()).or_default();
        let zone = state.node(&demand.node).and_then(|labels| labels.get(ZONE));
        of_node.zone = named(zone.map(|zone| &**zone)).to_owned();
        of_node.services.push((namespace, name, counts));
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let api = FakeApi::start(listener, &[NODES, SERVICES, SLICES, CLUSTER_POLICIES, PODS])?;
    let names: Vec<String> = state.nodes().map(|(name, _)| name.to_owned()).collect();
    for (path, objects) in by_path {
        api.fill(path, objects);
    }
    api.fill(PODS, names.iter().map(|name| pod(name)));
    let begin = Instant::now();
    api.answer_texts(move |path| {
        let node = path.strip_prefix("/api/v1/namespaces/topo-lb/pods/agent-")?;
        let node = node.strip_suffix(":19876/proxy/metrics")?;
        let empty = OfNode::default();
        let own = counted.get(node).unwrap_or(&empty);
        // Never falls, and is not the same every second.
        let seconds = begin.elapsed().as_secs_f64() + 60.0;
        let seconds = seconds + 1.6 * (seconds / 4.0).sin() + 0.9 * (seconds / 2.3).cos();
        Some(tell(metrics(own, seconds)))
    });
    Ok(api)
}

/// Starts a cluster of so many Nodes and Services, as [`cluster`]. Clients of each Node dial ten Services.
///
/// # Errors
/// As [`cluster`].
pub fn large(nodes: u32, services: u32) -> Result<FakeApi> {
    let objects: Vec<_> = Population::new("node-00000", nodes, services, 4).objects().collect();
    let name = |object: &Value, field: &str| {
        object["metadata"][field].as_str().unwrap_or_default().to_owned()
    };
    let of_kind = |kind| objects.iter().filter(move |object| object["kind"] == kind);
    let services: Vec<_> =
        of_kind("Service").map(|it| (name(it, "namespace"), name(it, "name"))).collect();
    let demands: Vec<_> = of_kind("Node")
        .enumerate()
        .flat_map(|(place, node)| (0..10).map(move |number| (place * 10 + number, node)))
        .map(|(number, node)| Demand {
            node: name(node, "name"),
            service: services[number * 7 % services.len()].clone(),
            connections: (number % 13) as f64,
            bytes: 5e4,
        })
        .collect();
    cluster(objects, &demands)
}

/// The bytes a second of these demands, by distance, at the mean of what changes from second to second.
///
/// # Errors
/// An object is none that agents read.
pub fn distances(objects: &[Value], demands: &[Demand]) -> Result<[f64; Locality::ALL.len()]> {
    let mut state = State::default();
    for object in objects {
        let _ = state.apply(update(object.clone())?, "");
    }
    let mut sums = [0.0; Locality::ALL.len()];
    for demand in demands {
        let (namespace, name) = &demand.service;
        let id = ServiceId { namespace: (&**namespace).into(), name: (&**name).into() };
        let counted = of(&state, demand, &id);
        sums.iter_mut().zip(counted.connections).for_each(|(sum, it)| *sum += it * counted.bytes);
    }
    Ok(sums)
}

fn pod(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "topo-lb", "labels": {"app.kubernetes.io/name": "topo-lb"}, "name": format!("agent-{node}")},
        "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
    })
}

/// What an agent counts of a demand.
fn of(state: &State, demand: &Demand, id: &ServiceId) -> Counted {
    let mut counted = Counted {
        connections: [0.0; 4],
        refused: 0.0,
        bytes: demand.bytes,
        zones: BTreeMap::new(),
    };
    let decisions = decide(state, &demand.node, Scope::All, id);
    let chosen = decisions.iter().flat_map(|it| &it.endpoints).filter(|it| it.is_chosen());
    let chosen: Vec<_> = chosen.collect();
    if chosen.is_empty() {
        counted.refused = demand.connections;
    }
    for endpoint in &chosen {
        let connections = demand.connections / chosen.len() as f64;
        counted.connections[endpoint.locality as usize] += connections;
        let bytes = counted.zones.entry(named(endpoint.zone).to_owned()).or_default();
        *bytes += connections * demand.bytes;
    }
    counted
}

fn metrics(of_node: &OfNode, seconds: f64) -> String {
    let mut text = "topo_lb_ready 1\n".to_owned();
    let mut zones: BTreeMap<&str, f64> = BTreeMap::new();
    for (namespace, name, counted) in &of_node.services {
        let labels = format!("namespace=\"{namespace}\",service=\"{name}\",port=\"http\"");
        for locality in Locality::ALL {
            let count = counted.connections[locality as usize] * seconds;
            if count == 0.0 {
                continue;
            }
            let labels = format!("{labels},locality=\"{}\"", locality.name());
            let half = count * counted.bytes / 2.0;
            let _ = writeln!(text, "topo_lb_connections_total{{{labels}}} {count}");
            let _ = writeln!(text, "topo_lb_tcp_sent_bytes_total{{{labels},tier=\"0\"}} {half}");
            let _ =
                writeln!(text, "topo_lb_tcp_received_bytes_total{{{labels},tier=\"0\"}} {half}");
            let _ = writeln!(
                text,
                "topo_lb_tcp_ended_connections_total{{{labels},tier=\"0\"}} {count}"
            );
        }
        if counted.refused > 0.0 {
            let count = counted.refused * seconds;
            let labels = format!("{labels},reason=\"topology-policy\"");
            let _ = writeln!(text, "topo_lb_refused_connections_total{{{labels}}} {count}");
        }
        for (zone, bytes) in &counted.zones {
            *zones.entry(zone).or_default() += bytes * seconds;
        }
    }
    for (zone, bytes) in zones {
        let labels = format!("source_zone=\"{}\",destination_zone=\"{zone}\"", of_node.zone);
        for direction in ["sent", "received"] {
            let half = bytes / 2.0;
            let _ = writeln!(text, "topo_lb_zone_{direction}_bytes_total{{{labels}}} {half}");
        }
    }
    text + "# EOF\n"
}

//! Stand-ins for the agents of a cluster, behind a fake API server: each counts what clients of its node
//! would do by the real decisions. For clusters of any size, and for agents that lie or are away.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};
use topo_lb::cluster::{ServiceId, State};
use topo_lb::topology::{Scope, Verdict, routes};
use topo_lb_common::backend::Locality;

use crate::fake_api::{FakeApi, NODES, SERVICES, SLICES};
use crate::population::update;

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

/// Rates by distance, and refused connections a second.
type Counted = ([f64; Locality::ALL.len()], f64, f64);

/// Starts an API server with these objects, an agent on each Node, and counters that begin now.
///
/// # Errors
/// An object is none that agents read, or the server does not start.
pub fn cluster(objects: Vec<Value>, demands: &[Demand]) -> Result<FakeApi> {
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
    let mut counted: BTreeMap<String, Vec<(String, String, Counted)>> = BTreeMap::new();
    for demand in demands {
        let (namespace, name) = demand.service.clone();
        let id = ServiceId { namespace: (&*namespace).into(), name: (&*name).into() };
        let counts = of(&state, demand, &id);
        counted.entry(demand.node.clone()).or_default().push((namespace, name, counts));
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let api = FakeApi::start(listener, &[NODES, SERVICES, SLICES, PODS])?;
    let names: Vec<String> = state.nodes().map(|(name, _)| name.to_owned()).collect();
    for (path, objects) in by_path {
        api.fill(path, objects);
    }
    api.fill(PODS, names.iter().map(|name| pod(name)));
    let begin = Instant::now();
    api.answer_texts(move |path| {
        let node = path.strip_prefix("/api/v1/namespaces/topo-lb/pods/agent-")?;
        let node = node.strip_suffix(":19876/proxy/metrics")?;
        let empty = Vec::new();
        let own = counted.get(node).unwrap_or(&empty);
        // Never falls, and is not the same every second.
        let seconds = begin.elapsed().as_secs_f64() + 60.0;
        Some(metrics(own, seconds + 1.6 * (seconds / 4.0).sin() + 0.9 * (seconds / 2.3).cos()))
    });
    Ok(api)
}

fn pod(node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"namespace": "topo-lb", "name": format!("agent-{node}")},
        "spec": {"nodeName": node, "containers": [{"name": "agent"}]},
    })
}

/// What an agent counts of a demand, a second.
fn of(state: &State, demand: &Demand, id: &ServiceId) -> Counted {
    let routes = routes(state, &demand.node, Scope::All, None, id);
    let Some(route) = routes.first().filter(|route| route.verdict == Verdict::Route) else {
        return ([0.0; 4], demand.connections, demand.bytes);
    };
    let mut connections = [0.0; 4];
    for endpoint in &route.endpoints {
        connections[endpoint.locality as usize] +=
            demand.connections / route.endpoints.len() as f64;
    }
    (connections, 0.0, demand.bytes)
}

fn metrics(counted: &[(String, String, Counted)], seconds: f64) -> String {
    let mut text = "topo_lb_ready 1\n".to_owned();
    for (namespace, name, (connections, refused, bytes)) in counted {
        let labels = format!("namespace=\"{namespace}\",service=\"{name}\",port=\"http\"");
        for locality in Locality::ALL {
            let count = connections[locality as usize] * seconds;
            if count == 0.0 {
                continue;
            }
            let labels = format!("{labels},locality=\"{}\"", locality.name());
            let half = count * bytes / 2.0;
            let _ = writeln!(text, "topo_lb_connections_total{{{labels}}} {count}");
            let _ = writeln!(text, "topo_lb_tcp_sent_bytes_total{{{labels},tier=\"0\"}} {half}");
            let _ =
                writeln!(text, "topo_lb_tcp_received_bytes_total{{{labels},tier=\"0\"}} {half}");
        }
        if *refused > 0.0 {
            let count = refused * seconds;
            let labels = format!("{labels},reason=\"topology-policy\"");
            let _ = writeln!(text, "topo_lb_refused_connections_total{{{labels}}} {count}");
        }
    }
    text + "# EOF\n"
}

//! A small cluster with traffic of every kind, for pictures and for tests that name what they see.

use anyhow::Result;
use serde_json::{Value, json};
use topo_lb_tests::counting::{self, Demand};
use topo_lb_tests::fake_api::FakeApi;

const NEAR: &str =
    "kubernetes.io/hostname,topology.kubernetes.io/zone,topology.kubernetes.io/region,*";
const ZONE: &str = "topology.kubernetes.io/zone";
const ZONE_FIRST: &str = "topology.kubernetes.io/zone,*";

/// The zones, their regions, and how many nodes each has.
const ZONES: [(&str, &str, usize); 4] =
    [("eu-1a", "eu-1", 5), ("eu-1b", "eu-1", 5), ("eu-1c", "eu-1", 4), ("edge-9", "edge", 3)];

/// A Service: its name, its keys, the nodes of its endpoints, connections a second of each client node
/// that begins with one of these letters, and bytes of a connection.
type Of = (&'static str, &'static str, &'static [&'static str], f64, &'static str, f64);

const SERVICES: [Of; 12] = [
    ("shop/cart", NEAR, &["a1", "a3", "b1", "b2", "c1", "c2"], 42.0, "abce", 22e3),
    ("shop/checkout", ZONE_FIRST, &["a1", "a2", "b3"], 11.0, "abc", 31e3),
    ("shop/search", "", &["a2", "b2", "c3"], 24.0, "abc", 48e3),
    ("shop/frontend", NEAR, &["a1", "a2", "b1", "b4", "c1", "e1"], 60.0, "abce", 9e3),
    ("shop/images", ZONE_FIRST, &["a4", "b4", "c4", "e2"], 14.0, "abce", 210e3),
    ("data/postgres", ZONE, &["a5", "b5"], 6.0, "abc", 90e3),
    (
        "data/cache",
        NEAR,
        &["a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "b4", "b5", "c1", "c2", "c3", "c4"],
        160.0,
        "abc",
        3e3,
    ),
    ("data/queue", NEAR, &["a3", "b3"], 9.0, "abce", 60e3),
    ("ops/metrics", ZONE_FIRST, &["a5", "c4"], 2.0, "abce", 140e3),
    ("ops/logs", "", &["b5"], 5.0, "abce", 75e3),
    ("ops/registry", NEAR, &["a4"], 0.4, "abce", 900e3),
    ("ml/models", ZONE_FIRST, &["c2", "c3"], 3.0, "ac", 400e3),
];

fn node(zone: &str, region: &str, name: &str, place: usize) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": region,
        "example.com/rack": format!("{zone}-r{}", place / 2 + 1),
    }}})
}

/// The objects of a Service with endpoints on these nodes, each named with its zone.
pub(crate) fn service(
    index: usize,
    name: &str,
    keys: &str,
    endpoints: &[(String, String)],
) -> [Value; 2] {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let mut annotations = json!({});
    if !keys.is_empty() {
        annotations["topo-lb.io/topology-keys"] = json!(keys);
    }
    let address = format!("10.96.0.{}", index + 1);
    let endpoints = endpoints.iter().enumerate().map(|(number, (node, zone))| {
        json!({"addresses": [format!("10.{}.0.{}", index + 1, number + 1)], "nodeName": node,
               "zone": zone, "conditions": {"ready": true}})
    });
    [
        json!({"apiVersion": "v1", "kind": "Service",
               "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
               "spec": {"clusterIP": address, "clusterIPs": [address],
                        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
               "metadata": {"namespace": namespace, "name": format!("{name}-1"),
                            "labels": {"kubernetes.io/service-name": name}},
               "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
               "endpoints": endpoints.collect::<Vec<_>>()}),
    ]
}

/// The cluster's API server. Traffic begins at once.
pub(crate) fn start() -> Result<FakeApi> {
    let mut objects = Vec::new();
    let mut nodes = Vec::new();
    for (zone, region, count) in ZONES {
        let letter = zone.trim_end_matches(|it: char| !it.is_ascii_alphabetic());
        let letter =
            if region == "edge" { "e" } else { letter.get(letter.len() - 1..).unwrap_or("x") };
        for place in 0..count {
            let name = format!("{letter}{}", place + 1);
            objects.push(node(zone, region, &name, place));
            nodes.push((name, zone.to_owned()));
        }
    }
    let mut demands = Vec::new();
    for (index, (name, keys, on, connections, from, bytes)) in SERVICES.into_iter().enumerate() {
        let is_on = |(node, _): &&(String, String)| on.contains(&&**node);
        let endpoints: Vec<_> = nodes.iter().filter(is_on).cloned().collect();
        objects.extend(service(index, name, keys, &endpoints));
        let (namespace, own) = name.split_once('/').unwrap_or_default();
        for (place, (node, _)) in nodes.iter().enumerate() {
            if node.starts_with(|letter| from.contains(letter)) {
                demands.push(Demand {
                    node: node.clone(),
                    service: (namespace.to_owned(), own.to_owned()),
                    connections: connections * (0.6 + 0.2 * ((place * 7 + index * 3) % 5) as f64),
                    bytes,
                });
            }
        }
    }
    counting::cluster(objects, &demands)
}

//! A small cluster with traffic of every kind: with stand-ins for agents here, with real ones in `real`.

use std::net::Ipv4Addr;

use anyhow::Result;
use serde_json::{Value, json};
use topo_lb_fake_api::FakeApi;
use topo_lb_tests::counting::{self, Demand};
use topo_lb_tests::pod::PORT;

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

/// A node, and where it is.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) name: String,
    zone: &'static str,
    region: &'static str,
    /// Its number in its zone, from 0.
    number: usize,
}

/// All nodes: `a1` to `a5` in zone `eu-1a`, and so on.
pub(crate) fn places() -> Vec<Site> {
    let of_zone = |(zone, region, count): (&'static str, &'static str, usize)| {
        let letter = if region == "edge" { "e" } else { &zone[zone.len() - 1..] };
        let place = move |number| {
            let name = format!("{letter}{}", number + 1);
            Site { name, zone, region, number }
        };
        (0..count).map(place)
    };
    ZONES.into_iter().flat_map(of_zone).collect()
}

fn node(Site { name, zone, region, number }: &Site) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": zone,
        "topology.kubernetes.io/region": region,
        "example.com/rack": format!("{zone}-r{}", number / 2 + 1),
    }}})
}

/// Where a Service is served: the node, its zone, and the address.
pub(crate) type Endpoint = (String, String, Ipv4Addr);

/// The ClusterIP of a Service; it listens on port 80.
pub(crate) fn cluster_ip(index: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 96, 0, index + 1)
}

/// The objects of a Service.
pub(crate) fn service(index: u8, name: &str, keys: &str, endpoints: &[Endpoint]) -> [Value; 2] {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    let mut annotations = json!({});
    if !keys.is_empty() {
        annotations["topo-lb.io/topology-keys"] = json!(keys);
    }
    let address = cluster_ip(index);
    let endpoints = endpoints.iter().map(|(node, zone, address)| {
        json!({"addresses": [address], "nodeName": node, "zone": zone, "conditions": {"ready": true}})
    });
    [
        json!({"apiVersion": "v1", "kind": "Service",
               "metadata": {"namespace": namespace, "name": name, "annotations": annotations},
               "spec": {"clusterIP": address, "clusterIPs": [address],
                        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
               "metadata": {"namespace": namespace, "name": format!("{name}-1"),
                            "labels": {"kubernetes.io/service-name": name}},
               "ports": [{"name": "http", "port": PORT, "protocol": "TCP"}],
               "endpoints": endpoints.collect::<Vec<_>>()}),
    ]
}

/// All objects. `address` is that of the server on a node, by its place in [`places`].
pub(crate) fn objects(address: impl Fn(usize) -> Ipv4Addr) -> Vec<Value> {
    let places = places();
    let mut objects: Vec<_> = places.iter().map(node).collect();
    for (index, (name, keys, on, ..)) in (0..).zip(SERVICES) {
        let is_on = |(_, place): &(usize, &Site)| on.contains(&&*place.name);
        let endpoints = places.iter().enumerate().filter(is_on);
        let endpoints: Vec<_> = endpoints
            .map(|(at, place)| (place.name.clone(), place.zone.to_owned(), address(at)))
            .collect();
        objects.extend(service(index, name, keys, &endpoints));
    }
    objects
}

/// What the clients of all nodes do, each with the index of its Service.
pub(crate) fn demands() -> Vec<(u8, Demand)> {
    let mut demands = Vec::new();
    for (index, (name, _, _, connections, from, bytes)) in (0..).zip(SERVICES) {
        let (namespace, own) = name.split_once('/').unwrap_or_default();
        for (at, Site { name: node, .. }) in places().into_iter().enumerate() {
            if node.starts_with(|letter| from.contains(letter)) {
                let share = 0.6 + 0.2 * ((at * 7 + usize::from(index) * 3) % 5) as f64;
                let service = (namespace.to_owned(), own.to_owned());
                let connections = connections * share;
                demands.push((index, Demand { node, service, connections, bytes }));
            }
        }
    }
    demands
}

/// Where a server is if no node is real.
pub(crate) fn made_up(at: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 0, u8::try_from(at).unwrap_or_default())
}

/// Bytes a second by distance of the clients of one Service, or of all.
pub(crate) fn distances(service: Option<&str>) -> Result<[f64; 4]> {
    let name = |of: &Demand| format!("{}/{}", of.service.0, of.service.1);
    let demands = demands().into_iter().map(|(_, demand)| demand);
    let demands: Vec<_> =
        demands.filter(|it| service.is_none_or(|service| name(it) == service)).collect();
    counting::distances(&objects(made_up), &demands)
}

/// The cluster's API server, with stand-ins for agents. Traffic begins at once.
pub(crate) fn start() -> Result<FakeApi> {
    start_as(|_| true, |text| text)
}

/// The same with traffic of these Services only, by their keys, and with agents that tell their counts in
/// another way.
pub(crate) fn start_as(
    is_used: impl Fn(&str) -> bool,
    tell: fn(String) -> String,
) -> Result<FakeApi> {
    let demands =
        demands().into_iter().filter(|(index, _)| is_used(SERVICES[usize::from(*index)].1));
    let demands: Vec<_> = demands.map(|(_, demand)| demand).collect();
    counting::cluster_as(objects(made_up), &demands, tell)
}

//! Clusters of any size, for measurements: objects as a control plane writes them.

use std::iter;
use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use serde_json::{Value, json};
use topo_lb_core::cluster::{Change, Update};
use topo_lb_kube::source::object::{Object, parse};

/// The port of every Service.
pub const SERVICE_PORT: u16 = 80;
/// The number of namespaces that Services are spread over: `team-0` and so on.
pub const NAMESPACES: u32 = 50;
/// The most endpoints per slice, the controller's default (`--max-endpoints-per-slice`).
const SLICE: u32 = 100;
/// The address before that of the first Service.
const SERVICES: Ipv4Addr = Ipv4Addr::new(10, 96, 1, 0);

/// The size and the endpoints of a cluster.
#[derive(Clone, Debug)]
pub struct Population {
    /// The number of Services.
    pub services: u32,
    /// The number of namespaces that they are in.
    pub namespaces: u32,
    /// Endpoints per Service.
    pub endpoints: u32,
    /// The name of the node under test, one of `nodes`.
    pub here: String,
    /// The number of nodes, in three zones.
    pub nodes: u32,
    /// The endpoints' addresses, the same for every Service. If empty: addresses that no pod has.
    pub addresses: Vec<Ipv4Addr>,
    /// The port of every endpoint.
    pub port: u16,
    /// Whether every other Service has an annotation with a topology policy.
    pub annotates: bool,
}

impl Population {
    /// A cluster of this size, whose endpoints have addresses that no pod has, and port 8080.
    #[must_use]
    pub fn new(here: &str, nodes: u32, services: u32, endpoints: u32) -> Self {
        let (here, addresses) = (here.into(), Vec::new());
        let annotates = true;
        Self {
            services,
            namespaces: NAMESPACES,
            endpoints,
            here,
            nodes,
            addresses,
            port: 8080,
            annotates,
        }
    }

    /// The ClusterIP of a Service.
    #[must_use]
    pub fn frontend(service: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(SERVICES.to_bits() + service)
    }

    /// A Node.
    #[must_use]
    pub fn node(&self, index: u32) -> Value {
        let name = self.node_name(index);
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": name, "uid": uid(1, index), "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {
                    "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
                    "example.com/rack": format!("rack-{}", index / 20),
                    "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name,
                    "kubernetes.io/os": "linux",
                    "node.kubernetes.io/instance-type": "standard-4",
                    "topology.kubernetes.io/region": "region-1",
                    "topology.kubernetes.io/zone": zone(index),
                },
                "annotations": {
                    "node.alpha.kubernetes.io/ttl": "0",
                    "volumes.kubernetes.io/controller-managed-attach-detach": "true",
                },
            },
        })
    }

    /// A Service; every other one has a topology policy, if this population annotates.
    #[must_use]
    pub fn service(&self, index: u32) -> Value {
        let (namespace, name) = (self.namespace(index), name(index));
        let annotations = if self.annotates && index.is_multiple_of(2) {
            json!({"topo-lb.io/topology-keys":
                   "kubernetes.io/hostname,topology.kubernetes.io/zone,*"})
        } else {
            json!({})
        };
        let address = Self::frontend(index);
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": namespace, "uid": uid(2, index), "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z", "annotations": annotations,
                "labels": {"app": name},
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
                "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
                "internalTrafficPolicy": "Cluster", "sessionAffinity": "None",
                "selector": {"app": name},
                "ports": [{"name": "http", "port": SERVICE_PORT, "protocol": "TCP",
                           "targetPort": self.port}],
            },
            "status": {"loadBalancer": {}},
        })
    }

    /// The slices of a Service; `ready` tells by number which endpoints are ready.
    #[must_use]
    pub fn slices(&self, index: u32, ready: impl Fn(u32) -> bool) -> Vec<Value> {
        let (namespace, service) = (self.namespace(index), name(index));
        let first_of = |slice: u32| slice * SLICE;
        (0..self.endpoints.div_ceil(SLICE))
            .map(|slice| {
                let numbers = first_of(slice)..self.endpoints.min(first_of(slice + 1));
                let endpoints: Vec<Value> =
                    numbers.map(|number| self.endpoint(index, number, ready(number))).collect();
                json!({
                    "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                    "addressType": "IPv4",
                    "metadata": {
                        "name": format!("{service}-{slice:05}"), "generateName": format!("{service}-"),
                        "namespace": namespace, "generation": 1, "resourceVersion": "1",
                        "uid": uid(3, index * 1_000 + slice),
                        "creationTimestamp": "2026-01-01T00:00:00Z",
                        "labels": {
                            "endpointslice.kubernetes.io/managed-by":
                                "endpointslice-controller.k8s.io",
                            "kubernetes.io/service-name": service,
                        },
                        "ownerReferences": [{
                            "apiVersion": "v1", "kind": "Service", "name": service,
                            "uid": uid(2, index), "controller": true, "blockOwnerDeletion": true,
                        }],
                    },
                    "ports": [{"name": "http", "port": self.port, "protocol": "TCP"}],
                    "endpoints": endpoints,
                })
            })
            .collect()
    }

    /// The number of the zone in which an endpoint of a Service is.
    #[must_use]
    pub fn zone_of(&self, service: u32, number: u32) -> u32 {
        zone_number(self.node_of(self.serial(service, number)))
    }

    fn serial(&self, service: u32, number: u32) -> u32 {
        service.wrapping_mul(self.endpoints).wrapping_add(number)
    }

    /// Endpoints with the address of a real pod are on the node under test.
    fn node_of(&self, serial: u32) -> u32 {
        match self.addresses.is_empty() {
            true => serial.wrapping_mul(2_654_435_761) % self.nodes,
            false => 0,
        }
    }

    fn endpoint(&self, service: u32, number: u32, ready: bool) -> Value {
        let serial = self.serial(service, number);
        let own = Ipv4Addr::from_bits(Ipv4Addr::new(11, 0, 0, 0).to_bits() + serial);
        let address = self.addresses.get(number as usize).copied().unwrap_or(own);
        let node = self.node_of(serial);
        json!({
            "addresses": [address],
            "conditions": {"ready": ready, "serving": ready, "terminating": false},
            "nodeName": self.node_name(node), "zone": zone(node),
            "targetRef": {
                "kind": "Pod", "namespace": self.namespace(service),
                "name": format!("{}-{number:05}", name(service)), "uid": uid(4, serial),
            },
        })
    }

    fn namespace(&self, service: u32) -> String {
        format!("team-{}", service % self.namespaces)
    }

    fn node_name(&self, index: u32) -> String {
        if index == 0 { self.here.clone() } else { format!("node-{index:05}") }
    }

    /// All objects: the Nodes, then each Service with its slices.
    pub fn objects(&self) -> impl Iterator<Item = Value> {
        let nodes = (0..self.nodes).map(|index| self.node(index));
        let services = (0..self.services)
            .flat_map(|index| iter::once(self.service(index)).chain(self.slices(index, |_| true)));
        nodes.chain(services)
    }

    /// All objects, as updates for an agent.
    pub fn updates(&self) -> Result<Vec<Update>> {
        self.objects().map(update).collect()
    }

    /// All objects and `others` as one `List`.
    #[must_use]
    pub fn list(&self, others: &[Value]) -> String {
        let items = self.objects().chain(others.iter().cloned()).map(|object| object.to_string());
        let items = items.collect::<Vec<_>>().join(",");
        format!(r#"{{"apiVersion":"v1","kind":"List","items":[{items}]}}"#)
    }
}

/// An object as an update for an agent.
///
/// # Errors
/// An agent does not read this kind.
pub fn update(object: Value) -> Result<Update> {
    Ok(match parse(object)? {
        Object::Node(node) => Update::Node(Change::Applied(node)),
        Object::Service(service) => Update::Service(Change::Applied(service)),
        Object::Slice(slice, _) => Update::Slice(Change::Applied(slice)),
        other => bail!("no agent reads {other:?}"),
    })
}

fn name(service: u32) -> String {
    format!("service-{service:05}")
}

fn zone(node: u32) -> String {
    format!("zone-{}", zone_number(node))
}

fn zone_number(node: u32) -> u32 {
    node % 3
}

/// As long as a real one.
fn uid(kind: u32, number: u32) -> String {
    format!("{kind:08x}-0000-4000-8000-{number:012x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_cut_into_slices_as_the_controller_does() {
        let population = Population::new("here", 3, 1, 250);
        let slices = population.slices(0, |number| number != 249);
        let sizes = slices.iter().map(|slice| slice["endpoints"].as_array().unwrap().len());
        assert_eq!(sizes.collect::<Vec<_>>(), [100, 100, 50]);
        assert_eq!(slices[2]["endpoints"][49]["conditions"]["ready"], false);
        assert_eq!(slices[2]["endpoints"][48]["conditions"]["ready"], true);
    }
}

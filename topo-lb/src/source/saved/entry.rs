//! Objects as lines of the saved state.
//!
//! These are the objects as the agent keeps them, with the few fields that topology reads, and not
//! those of the API: a hundred thousand endpoints take some megabytes. What endpoints of a slice have
//! in common is said once per slice.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cluster::kept::{Endpoint, Endpoints, Place};
use crate::cluster::service::{PolicySources, Skipped};
use crate::cluster::slice::{SliceEndpoint, SliceId, SlicePort};
use crate::cluster::{Labels, Node, Protocol, Service, ServiceId, ServicePort, Slice, Uid};

type Tree = BTreeMap<Arc<str>, Arc<str>>;

fn tree(labels: &Labels) -> Tree {
    labels.iter().map(|(key, value)| (key.into(), value.into())).collect()
}

/// One line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Entry {
    Node(NodeEntry),
    Service(ServiceEntry),
    Slice(SliceEntry),
}

#[derive(Serialize, Deserialize)]
pub(super) struct NodeEntry {
    name: Arc<str>,
    labels: Tree,
}

impl NodeEntry {
    pub(super) fn of(name: &str, labels: &Labels) -> Self {
        Self { name: name.into(), labels: tree(labels) }
    }
}

impl From<NodeEntry> for Node {
    fn from(entry: NodeEntry) -> Self {
        Self { name: entry.name, labels: entry.labels }
    }
}

/// Name, number, protocol.
type PortEntry = (Arc<str>, u16, ProtocolEntry);

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum ProtocolEntry {
    Tcp,
    Udp,
    Sctp,
}

impl From<Protocol> for ProtocolEntry {
    fn from(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Tcp => Self::Tcp,
            Protocol::Udp => Self::Udp,
            Protocol::Sctp => Self::Sctp,
        }
    }
}

impl From<ProtocolEntry> for Protocol {
    fn from(protocol: ProtocolEntry) -> Self {
        match protocol {
            ProtocolEntry::Tcp => Self::Tcp,
            ProtocolEntry::Udp => Self::Udp,
            ProtocolEntry::Sctp => Self::Sctp,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct ServiceEntry {
    namespace: Arc<str>,
    name: Arc<str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    addresses: Vec<IpAddr>,
    ports: Vec<PortEntry>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    topology_keys: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    openyurt: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    spec_topology_keys: Vec<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    min_endpoints: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spill: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    handle: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "is_false")]
    hints_asked: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    internal_local: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    external_local: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    affinity_seconds: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    skipped: Option<SkippedEntry>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum SkippedEntry {
    Headless,
    ExternalName,
    OtherProxy,
    HeadlessLabel,
    NoClusterIp,
}

impl From<&Service> for ServiceEntry {
    fn from(service: &Service) -> Self {
        let policy = PolicySources::clone(&service.policy);
        Self {
            namespace: service.id.namespace.clone(),
            name: service.id.name.clone(),
            uid: service.uid.map(|uid| uid.to_string()),
            addresses: service.cluster_ips.clone(),
            ports: service
                .ports
                .iter()
                .map(|port| (port.name.clone(), port.port, port.protocol.into()))
                .collect(),
            topology_keys: policy.topology_keys,
            openyurt: policy.openyurt,
            spec_topology_keys: policy.spec_topology_keys,
            min_endpoints: policy.min_endpoints,
            spill: policy.spill,
            refusal: policy.refusal,
            handle: policy.handle,
            hints_asked: policy.hints_asked,
            internal_local: service.internal_local,
            external_local: service.external_local,
            affinity_seconds: service.affinity_seconds,
            skipped: service.skipped.map(|why| match why {
                Skipped::Headless => SkippedEntry::Headless,
                Skipped::ExternalName => SkippedEntry::ExternalName,
                Skipped::OtherProxy => SkippedEntry::OtherProxy,
                Skipped::HeadlessLabel => SkippedEntry::HeadlessLabel,
                Skipped::NoClusterIp => SkippedEntry::NoClusterIp,
            }),
        }
    }
}

impl From<ServiceEntry> for Service {
    fn from(entry: ServiceEntry) -> Self {
        let port = |(name, port, protocol): PortEntry| ServicePort {
            name,
            port,
            protocol: protocol.into(),
        };
        Self {
            id: ServiceId { namespace: entry.namespace, name: entry.name },
            uid: entry.uid.as_deref().and_then(Uid::parse),
            cluster_ips: entry.addresses,
            ports: entry.ports.into_iter().map(port).collect(),
            policy: Arc::new(PolicySources {
                topology_keys: entry.topology_keys,
                openyurt: entry.openyurt,
                spec_topology_keys: entry.spec_topology_keys,
                min_endpoints: entry.min_endpoints,
                spill: entry.spill,
                refusal: entry.refusal,
                handle: entry.handle,
                hints_asked: entry.hints_asked,
            }),
            internal_local: entry.internal_local,
            external_local: entry.external_local,
            affinity_seconds: entry.affinity_seconds,
            skipped: entry.skipped.map(|why| match why {
                SkippedEntry::Headless => Skipped::Headless,
                SkippedEntry::ExternalName => Skipped::ExternalName,
                SkippedEntry::OtherProxy => Skipped::OtherProxy,
                SkippedEntry::HeadlessLabel => Skipped::HeadlessLabel,
                SkippedEntry::NoClusterIp => Skipped::NoClusterIp,
            }),
        }
    }
}

/// A slice that belongs to a Service, which is of the same namespace.
#[derive(Serialize, Deserialize)]
pub(super) struct SliceEntry {
    namespace: Arc<str>,
    name: Arc<str>,
    service: Arc<str>,
    ports: Vec<PortEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    places: Vec<PlaceEntry>,
    endpoints: Vec<EndpointEntry>,
}

#[derive(Serialize, Deserialize)]
struct PlaceEntry {
    labels: Tree,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    for_nodes: Vec<Arc<str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    for_zones: Vec<Arc<str>>,
}

/// Address, conditions, node, and index of its place.
#[derive(Serialize, Deserialize)]
struct EndpointEntry(IpAddr, u8, Option<Arc<str>>, Option<usize>);

const READY: u8 = 1;
const SERVING: u8 = 2;
const TERMINATING: u8 = 4;

/// What of a place is said once: all but the node, which is said of each endpoint.
type Common<'a> = (&'a Labels, &'a [Arc<str>], &'a [Arc<str>]);

/// `None` where there is nothing to say.
fn common(place: &Place) -> Option<Common<'_>> {
    let Place { node: _, labels, for_nodes, for_zones } = place;
    let is_empty = labels.is_empty() && for_nodes.is_empty() && for_zones.is_empty();
    (!is_empty).then_some((labels, for_nodes, for_zones))
}

impl SliceEntry {
    pub(super) fn of(id: &SliceId, slice: &Endpoints) -> Self {
        let mut places: Vec<Common<'_>> = Vec::new();
        let endpoints = slice.endpoints.iter().map(|endpoint| {
            let place = endpoint.place.as_deref().and_then(common).map(|place| {
                places.iter().position(|known| *known == place).unwrap_or_else(|| {
                    places.push(place);
                    places.len() - 1
                })
            });
            let Endpoint { address, ready, serving, terminating, .. } = *endpoint;
            let flag = |is: bool, flag: u8| if is { flag } else { 0 };
            let conditions =
                flag(ready, READY) | flag(serving, SERVING) | flag(terminating, TERMINATING);
            EndpointEntry(address, conditions, endpoint.node().cloned(), place)
        });
        let endpoints = endpoints.collect();
        Self {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            service: slice.service.name.clone(),
            ports: slice
                .ports
                .iter()
                .map(|port| (port.name.clone(), port.port, port.protocol.into()))
                .collect(),
            places: places
                .into_iter()
                .map(|(labels, for_nodes, for_zones)| PlaceEntry {
                    labels: tree(labels),
                    for_nodes: for_nodes.to_vec(),
                    for_zones: for_zones.to_vec(),
                })
                .collect(),
            endpoints,
        }
    }
}

impl From<SliceEntry> for Slice {
    fn from(entry: SliceEntry) -> Self {
        let SliceEntry { namespace, name, service, ports, places, endpoints } = entry;
        let port =
            |(name, port, protocol): PortEntry| SlicePort { name, port, protocol: protocol.into() };
        let endpoint = |EndpointEntry(address, conditions, node, place): EndpointEntry| {
            let place = place.and_then(|at| places.get(at));
            SliceEndpoint {
                address,
                node,
                labels: place.map(|place| place.labels.clone()).unwrap_or_default(),
                ready: conditions & READY != 0,
                serving: conditions & SERVING != 0,
                terminating: conditions & TERMINATING != 0,
                for_nodes: place.map(|place| place.for_nodes.clone()).unwrap_or_default(),
                for_zones: place.map(|place| place.for_zones.clone()).unwrap_or_default(),
            }
        };
        Self {
            service: Some(ServiceId { namespace: namespace.clone(), name: service }),
            id: SliceId { namespace, name },
            ports: ports.into_iter().map(port).collect(),
            endpoints: endpoints.into_iter().map(endpoint).collect(),
            // Long past.
            triggered: None,
        }
    }
}

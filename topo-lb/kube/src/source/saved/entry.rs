//! Lines of the saved state, with the kept fields only: 100,000 endpoints take some megabytes.
//! Nodes and Services serialize themselves; a slice lists common properties of its endpoints once.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use topo_lb_core::cluster::kept::Endpoints;
use topo_lb_core::cluster::{
    Endpoint, Namespace, Node, Placement, Port, Service, ServiceId, Slice, SliceId, TopologyPolicy,
    ZoneRegion,
};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Entry {
    Node(Node),
    Region(ZoneRegion),
    Namespace(Namespace),
    Policy(TopologyPolicy),
    Service(Service),
    Slice(SliceEntry),
}

/// A slice that belongs to a Service in its namespace.
#[derive(Serialize, Deserialize)]
pub(super) struct SliceEntry {
    namespace: Arc<str>,
    name: Arc<str>,
    service: Arc<str>,
    ports: Vec<Port>,
    /// Without their nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    places: Vec<Placement>,
    endpoints: Vec<EndpointEntry>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    headless: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    mirrored: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    ready_since: Vec<(IpAddr, i64)>,
}

/// Address, conditions, node, and index in `places`.
#[derive(Serialize, Deserialize)]
struct EndpointEntry(IpAddr, u8, Option<Arc<str>>, Option<usize>);

const READY: u8 = 1;
const SERVING: u8 = 2;
const TERMINATING: u8 = 4;
const HAS_HOSTNAME: u8 = 8;

impl SliceEntry {
    pub(super) fn of(id: &SliceId, slice: &Endpoints) -> Self {
        let mut places: Vec<Placement> = Vec::new();
        let endpoints = slice.endpoints.iter().map(|endpoint| {
            let mut place = endpoint.place.as_deref().cloned().unwrap_or_default();
            let node = place.node.take();
            let place = (place != Placement::default()).then(|| {
                places.iter().position(|known| *known == place).unwrap_or_else(|| {
                    places.push(place);
                    places.len() - 1
                })
            });
            let Endpoint { address, ready, serving, terminating, has_hostname, .. } = *endpoint;
            let flag = |is: bool, flag: u8| if is { flag } else { 0 };
            let conditions = flag(ready, READY)
                | flag(serving, SERVING)
                | flag(terminating, TERMINATING)
                | flag(has_hostname, HAS_HOSTNAME);
            EndpointEntry(address, conditions, node, place)
        });
        let endpoints = endpoints.collect();
        Self {
            namespace: id.namespace.clone(),
            name: id.name.clone(),
            service: slice.service.name.clone(),
            ports: slice.ports.to_vec(),
            places,
            endpoints,
            headless: slice.headless,
            mirrored: slice.mirrored,
            ready_since: slice.ready_since.to_vec(),
        }
    }
}

impl From<SliceEntry> for Slice {
    fn from(entry: SliceEntry) -> Self {
        let SliceEntry { namespace, name, service, ports, places, .. } = entry;
        let SliceEntry { endpoints, headless, mirrored, ready_since, .. } = entry;
        let endpoint = |EndpointEntry(address, conditions, node, place): EndpointEntry| {
            let place = place.and_then(|at| places.get(at)).cloned().unwrap_or_default();
            Endpoint {
                ready: conditions & READY != 0,
                serving: conditions & SERVING != 0,
                terminating: conditions & TERMINATING != 0,
                has_hostname: conditions & HAS_HOSTNAME != 0,
                ..Endpoint::new(address, Placement { node, ..place })
            }
        };
        Self {
            service: Some(ServiceId { namespace: namespace.clone(), name: service }),
            id: SliceId { namespace, name },
            ports,
            endpoints: endpoints.into_iter().map(endpoint).collect(),
            headless,
            mirrored,
            triggered: None,
            ready_since,
        }
    }
}

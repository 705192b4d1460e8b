//! Which endpoints this node may use, and why: one pure function.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use topo_lb_common::backend::Locality;

use crate::cluster::service::Protocol;

/// Where a Service's policy came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicySource {
    /// Annotation `topo-lb.io/topology-keys`.
    TopologyKeys,
    /// Annotation `openyurt.io/topologyKeys`.
    OpenYurt,
    /// Field `spec.topologyKeys`.
    SpecTopologyKeys,
    /// EndpointSlice hints.
    Hints,
    /// Nowhere: unconstrained.
    None,
}

/// What the decision means for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Connections go to the chosen endpoints.
    Route,
    /// Connections are refused.
    Refuse,
    /// Not ours: connections go on untouched.
    Bypass,
}

/// One endpoint that this node may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chosen {
    /// Where it listens.
    pub address: SocketAddr,
    /// How far it is.
    pub locality: Locality,
}

/// What a frontend's connections are to do: all that the datapath needs of a decision, for one
/// Service port and one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The Service's ClusterIPs of this family.
    pub frontends: Vec<IpAddr>,
    /// The Service port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Route, refuse or bypass.
    pub verdict: Verdict,
    /// Index of the matching key.
    pub tier: Option<u8>,
    /// Endpoints of the chosen tier, sorted, without duplicates.
    pub endpoints: Vec<Chosen>,
    /// Endpoints of the next wider tier, for spilled connections; sorted.
    pub wider: Vec<Chosen>,
    /// Share of new connections that spill, in parts of `selection::SPILL_ONE`.
    pub spill: u32,
    /// Session affinity in seconds.
    pub affinity_seconds: Option<u32>,
    /// Endpoints that serve but are not chosen (and not in `wider`): flows that exist may stay on
    /// them. Sorted.
    pub serving: Vec<SocketAddr>,
    /// `namespace/name:port` of the Service port, for people; the port's name, else its number.
    pub name: Arc<str>,
}

//! Which endpoints this node may use, and why: pure functions without I/O, clock or memory.
//!
//! | file | idea |
//! |---|---|
//! | `policy` | where a Service's policy comes from |
//! | `origin` | the objects that can say one |
//! | `trial` | objects that hold on some nodes only, or on none |
//! | `field` | annotations and fields that say a part of a policy |
//! | `validation` | the rules that they must keep |
//! | `candidate` | the endpoints of a Service port, and which can be used |
//! | `label` | labels, node pools and distance |
//! | `label_name` | valid names and values of labels |
//! | `keys`, `openyurt`, `hints` | the policies |
//! | `rules` | which of them is asked for |
//! | `min_endpoints`, `spill` | what refines keys |
//! | `crowding` | the share that spills with `auto` |
//! | `weights` | how new connections divide among endpoints |
//! | `ejection` | leaving endpoints out of a tier, because connects to them failed |
//! | `ejected` | which endpoints a node leaves out, by its decisions |
//! | `evaluation` | the decision for one Service port and one address family |
//! | `route` | the datapath's part of a decision |
//! | `size` | how much a Service asks for, before anything is made of it |
//! | `named` | what the name of a headless Service stands for |
//! | `node_labels` | whether a decision reads labels of other Nodes |
//! | `alike` | nodes that a Service treats alike |
//! | `reached` | how much of a Service a load balancer reaches through this node |
//! | `exposed` | frontends besides ClusterIPs |
//! | `claim` | frontends that more than one Service port claims |
//! | `cause` | causes of a decision |
//! | `decision` | a decision with everything that explains it |

mod alike;
pub mod candidate;
pub mod cause;
pub mod claim;
pub mod crowding;
pub mod decision;
pub mod ejected;
pub mod ejection;
mod evaluation;
pub mod exposed;
pub mod field;
mod hints;
mod keys;
pub mod label;
pub mod label_name;
mod min_endpoints;
pub mod named;
mod node_labels;
mod openyurt;
mod origin;
mod policy;
mod reached;
mod route;
mod rules;
pub mod size;
pub mod spill;
pub mod trial;
pub mod validation;
pub mod weights;
pub mod zone;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use topo_lb_common::backend::Locality;

use crate::cluster::service::PolicySources;
use crate::cluster::{
    Clients, Frontend, KnownNodes, MOST_POLICIES, Port, Service, ServiceId, State, TopologyPolicy,
};

use crate::cluster::Family;
pub use alike::NodesByLabel;
use candidate::Candidate;
pub use decision::Decision;
use label::{Here, Site};
pub use node_labels::{reads_other_nodes, waits_for};
pub use origin::Origin;
pub use reached::reached;
pub use route::{Part, Route, routes};
use trial::Seen;
use validation::Ignored;

/// Which Services topo-lb handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Scope {
    /// Every Service with a ClusterIP.
    #[default]
    All,
    /// Only Services that carry a topology policy; the others are left to kube-proxy.
    // An annotation for keys, OpenYurt or ejection, `spec.topologyKeys` or `spec.trafficDistribution`;
    // ignored ones do not count.
    OptIn,
}

/// The source of a Service's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum PolicySource {
    /// Annotation `topo-lb.io/topology-keys`.
    #[strum(serialize = "topo-lb.io/topology-keys")]
    TopologyKeys,
    /// Annotation `topo-lb.io/external-topology-keys`, for clients outside.
    #[strum(serialize = "topo-lb.io/external-topology-keys")]
    ExternalTopologyKeys,
    /// Annotation `openyurt.io/topologyKeys`.
    #[strum(serialize = "openyurt.io/topologyKeys")]
    OpenYurt,
    /// Field `spec.topologyKeys`.
    #[strum(serialize = "spec.topologyKeys")]
    SpecTopologyKeys,
    /// A TopologyPolicy that selects the Service.
    #[strum(serialize = "TopologyPolicy")]
    TopologyPolicy,
    /// Annotation `topo-lb.io/topology-keys` of the Service's Namespace.
    #[strum(serialize = "Namespace")]
    Namespace,
    /// A ClusterTopologyPolicy that selects the Service.
    #[strum(serialize = "ClusterTopologyPolicy")]
    ClusterTopologyPolicy,
    /// EndpointSlice hints.
    Hints,
    /// No policy: unconstrained.
    None,
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum PolicyKind {
    /// The first node label with a match decides.
    Keys,
    /// This node, or this node's pool.
    OpenYurt,
    /// Endpoints hinted for this node, else for this zone, else every usable endpoint.
    Hints,
    /// Every usable endpoint.
    None,
}

/// What happens to a client's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Verdict {
    /// Connections go to the chosen endpoints.
    Route,
    /// Connections are refused.
    Refuse,
    /// topo-lb does not translate them.
    Bypass,
}

/// Why topo-lb does not translate connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bypass<'a> {
    /// The Service has no policy, in [`Scope::OptIn`].
    OutOfScope,
    /// Annotation `topo-lb.io/handle: "false"`.
    Annotation,
    /// A device of this node has the ClusterIP, so the node itself serves it.
    Local {
        /// The ClusterIP.
        address: IpAddr,
        /// The device.
        device: &'a str,
    },
}

/// One endpoint that this node may use, in 20 bytes to save memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chosen {
    ip: IpAddr,
    port: u16,
    /// Its distance from this node.
    pub locality: Locality,
}

impl Chosen {
    /// The endpoint that listens at `address`.
    #[must_use]
    pub const fn new(address: SocketAddr, locality: Locality) -> Self {
        Self { ip: address.ip(), port: address.port(), locality }
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

/// Decides for every port of a Service, with explanations, for clients of this node at ClusterIPs. Empty
/// without a ClusterIP to translate.
#[must_use]
pub fn decide<'a>(
    state: &'a State,
    this_node: &'a str,
    scope: Scope,
    id: &ServiceId,
) -> Vec<Decision<'a>> {
    decide_for(Clients::Anywhere, state, this_node, scope, id)
}

/// The same for these clients; those outside of this node dial node ports, load balancer IPs and external
/// IPs.
#[must_use]
pub fn decide_for<'a>(
    clients: Clients,
    state: &'a State,
    this_node: &'a str,
    scope: Scope,
    id: &ServiceId,
) -> Vec<Decision<'a>> {
    decide_for_some(clients, state, this_node, scope, id, usize::MAX)
}

/// The same for the first `most` ports.
#[must_use]
pub fn decide_for_some<'a>(
    clients: Clients,
    state: &'a State,
    this_node: &'a str,
    scope: Scope,
    id: &ServiceId,
    most: usize,
) -> Vec<Decision<'a>> {
    decide_as(Seen::From(this_node), clients, state, this_node, scope, id, most)
}

/// The same for clients of this node, as if no policy were on trial; `None`: the labels that this reads
/// from other Nodes are not known.
#[must_use]
pub fn decide_in_full<'a>(
    state: &'a State,
    this_node: &'a str,
    scope: Scope,
    id: &ServiceId,
) -> Option<Vec<Decision<'a>>> {
    let reads = || node_labels::reads(state, Seen::InFull, this_node, scope, id);
    if state.known_nodes() == KnownNodes::Own && reads().is_some() {
        return None;
    }
    Some(decide_as(Seen::InFull, Clients::Anywhere, state, this_node, scope, id, usize::MAX))
}

fn decide_as<'a>(
    seen: Seen<'_>,
    clients: Clients,
    state: &'a State,
    this_node: &'a str,
    scope: Scope,
    id: &ServiceId,
    most: usize,
) -> Vec<Decision<'a>> {
    let Some(service) = state.service(id).filter(|service| has_frontends(service)) else {
        return Vec::new();
    };
    let here = Here::of(state, this_node);
    let mut policy = policy::of(state, seen, service);
    policy.ignored.extend(ejected::unseen(state, &policy));
    let is_seen = policy.handled && state.ejections().unseen.is_none();
    policy.ejection = policy.ejection.filter(|_| is_seen);
    let bypass = policy.bypass(scope, service);
    let decision = |port| Decision::of(state, here, service, port, &policy, clients, bypass);
    service.ports.iter().take(most).map(decision).collect()
}

/// The endpoints that serve a frontend of a Service on any node: those that its slices list as ready
/// or serving. Also answers for bypassed Services.
#[must_use]
pub fn serving(state: &State, id: &ServiceId, frontend: &Frontend) -> HashSet<SocketAddr> {
    let Some(service) = state.service(id) else {
        return HashSet::new();
    };
    let Frontend { address, port: number, protocol, .. } = *frontend;
    let ports = service.ports.iter().enumerate().filter(|(place, port)| {
        port.protocol == protocol && service.is_dialled_at(*place, address, number)
    });
    ports
        .flat_map(|(_, port)| candidate::of(state, service, port, Family::of(address)))
        .filter(Candidate::serves)
        .map(|one| one.address)
        .collect()
}

/// Every endpoint of a Service port in one family, sorted by address and port, and where it is.
#[must_use]
pub fn sites<'a>(
    state: &'a State,
    service: &Service,
    port: &Port,
    family: Family,
) -> Vec<(SocketAddr, Site<'a>)> {
    let all = candidate::of(state, service, port, family);
    all.into_iter().map(|one| (one.address, one.site)).collect()
}

/// How far the endpoint of a Service port at this address is from `node`; `None` if it has none there.
#[must_use]
pub fn locality(
    state: &State,
    node: &str,
    service: &Service,
    port: &Port,
    endpoint: SocketAddr,
) -> Option<Locality> {
    let all = candidate::of(state, service, port, Family::of(endpoint.ip()));
    let found = all.into_iter().find(|one| one.address == endpoint)?;
    Some(found.site.locality(Here::of(state, node)))
}

/// The ignored annotations and fields of a Service, each with the rule that it broke; `None` if
/// there are none, or the Service has no ClusterIP to translate. Without those of policies and of its
/// Namespace: they are of many Services. As if no object were on trial.
#[must_use]
pub fn ignored(state: &State, id: &ServiceId) -> Option<String> {
    let service = state.service(id).filter(|service| has_frontends(service))?;
    let mut policy = policy::of(state, Seen::InFull, service);
    policy.ignored.extend(ejected::unseen(state, &policy));
    let own = policy.ignored.iter().filter(|one| one.origin == Origin::Service);
    let sentences: Vec<_> = own.map(ToString::to_string).collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
}

/// The object whose keys are in force for a Service, at least on some nodes; `None` without a policy, or if
/// topo-lb leaves it alone.
#[must_use]
pub fn decider(state: &State, service: &Service) -> Option<Origin> {
    let policy = policy::of(state, Seen::From(""), service);
    (policy.handled && policy.source != PolicySource::None).then_some(policy.origin)
}

/// The rules that an object breaks by itself, whatever the Services that it selects.
#[must_use]
pub fn broken(origin: &Origin, policy: &PolicySources) -> Vec<Ignored> {
    policy::broken(origin, policy)
}

/// What is wrong with a policy by itself: it does not count, or breaks rules.
#[must_use]
pub fn faults(state: &State, policy: &TopologyPolicy) -> Vec<String> {
    let origin = Origin::Policy(policy.id.clone());
    if state.counts(policy) {
        return broken(&origin, &policy.policy).iter().map(ToString::to_string).collect();
    }
    vec![format!(
        "{origin} is ignored: {MOST_POLICIES} TopologyPolicies of its namespace are stronger, and no more \
         than these count; remove some, or give it a greater precedence"
    )]
}

/// The last local ClusterIP of a family and its device, if devices of this host have all of them.
fn local<'a>(state: &'a State, service: &Service, family: Family) -> Option<Bypass<'a>> {
    let own = service.cluster_ips.iter().filter(|&&address| Family::of(address) == family);
    let mut found = None;
    for &address in own {
        let device = state.local_device(address)?;
        found = Some(Bypass::Local { address, device });
    }
    found
}

fn has_frontends(service: &Service) -> bool {
    service.skipped.is_none() && !service.cluster_ips.is_empty()
}

/// `namespace/name:port`; a port without a name has its number.
#[must_use]
pub fn port_name(service: &Service, port: &Port) -> Arc<str> {
    let ServiceId { namespace, name } = &service.id;
    match &*port.name {
        "" => format!("{namespace}/{name}:{}", port.port).into(),
        own => format!("{namespace}/{name}:{own}").into(),
    }
}

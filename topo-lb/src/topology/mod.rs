//! Which endpoints this node may use, and why: pure functions without I/O, clock or memory.
//!
//! | file | idea |
//! |---|---|
//! | `policy` | where a Service's policy comes from |
//! | `validation` | the rules that annotations and fields must keep |
//! | `candidate` | the endpoints of a Service port, and which can be used |
//! | `label` | labels, node pools and distance |
//! | `keys`, `openyurt`, `hints` | the policies |
//! | `min_endpoints`, `spill` | what refines keys |
//! | `evaluation` | the decision for one Service port and one address family |
//! | `node_labels` | whether a decision reads labels of other Nodes |
//! | `exposed` | frontends besides ClusterIPs |
//! | `claim` | frontends that more than one Service port claims |
//! | `cause` | causes of a decision |
//! | `decision` | a decision with everything that explains it |

pub mod candidate;
pub mod cause;
pub mod claim;
pub mod decision;
mod evaluation;
pub mod exposed;
mod hints;
mod keys;
pub mod label;
mod min_endpoints;
mod node_labels;
mod openyurt;
mod policy;
pub mod spill;
pub mod validation;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use topo_lb_common::backend::Locality;

use crate::cluster::service::Protocol;
use crate::cluster::{Frontend, FrontendKind, Port, Service, ServiceId, State};

use crate::cluster::Family;
use candidate::Candidate;
pub use decision::Decision;
use evaluation::{CandidateStatus, Evaluation};
use exposed::{Exposed, Exposing};
use label::Here;
pub use node_labels::{reads_other_nodes, waits_for};
use policy::Rules;

/// Which Services topo-lb handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Scope {
    /// Every Service with a ClusterIP.
    #[default]
    All,
    /// Only Services that carry a topology policy; the others are left to kube-proxy.
    // An annotation, `spec.topologyKeys` or `spec.trafficDistribution`; ignored ones do not count.
    OptIn,
}

/// The source of a Service's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum PolicySource {
    /// Annotation `topo-lb.io/topology-keys`.
    #[strum(serialize = "topo-lb.io/topology-keys")]
    TopologyKeys,
    /// Annotation `openyurt.io/topologyKeys`.
    #[strum(serialize = "openyurt.io/topologyKeys")]
    OpenYurt,
    /// Field `spec.topologyKeys`.
    #[strum(serialize = "spec.topologyKeys")]
    SpecTopologyKeys,
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

/// The datapath's part of a decision, for one Service port and one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What clients dial, all of this family and protocol.
    pub frontends: Vec<Exposed>,
    /// The Service port's protocol.
    pub protocol: Protocol,
    /// Route, refuse or bypass.
    pub verdict: Verdict,
    /// `metadata.creationTimestamp`: the older of two claimants gets a frontend.
    pub created: Option<Arc<str>>,
    /// Index of the matching key.
    pub tier: Option<u8>,
    /// Endpoints of the chosen tier, sorted, without duplicates.
    pub endpoints: Vec<Chosen>,
    /// Endpoints of the next wider tier, for spilled connections; sorted.
    pub wider: Vec<Chosen>,
    /// Share of new connections that spill, in parts of `selection::SPILL_ONE`.
    pub spill: u16,
    /// Connections are refused if no endpoint matches, although the Service has endpoints.
    pub strict: bool,
    /// Session affinity in seconds.
    pub affinity_seconds: Option<u32>,
    /// Endpoints that serve but are not chosen, nor in `wider`: existing flows may stay. Sorted.
    pub serving: Vec<SocketAddr>,
    /// `namespace/name:port` of the Service port for logs; a port without a name has its number.
    pub name: Arc<str>,
}

/// Decides for every port of a Service, with explanations. Empty without a ClusterIP to translate.
#[must_use]
pub fn decide<'a>(
    state: &'a State,
    this_node: &'a str,
    scope: Scope,
    id: &ServiceId,
) -> Vec<Decision<'a>> {
    let Some(service) = state.service(id).filter(|service| has_frontends(service)) else {
        return Vec::new();
    };
    let here = Here::of(state, this_node);
    let policy = policy::of(service);
    let bypass = policy.bypass(scope, service);
    let decision = |port| Decision::of(state, here, service, port, &policy, bypass);
    service.ports.iter().map(decision).collect()
}

/// The routes of a Service, by port and address family: one for its ClusterIPs, without those that a
/// device of this node has, and its other frontends, which have one of their own with
/// `internalTrafficPolicy: Local`. Empty if the Service is unknown, bypassed or without a ClusterIP.
#[must_use]
pub fn routes(
    state: &State,
    this_node: &str,
    scope: Scope,
    exposing: Option<&Exposing>,
    id: &ServiceId,
) -> Vec<Route> {
    let Some(service) = state.service(id).filter(|service| has_frontends(service)) else {
        return Vec::new();
    };
    let here = Here::of(state, this_node);
    let policy = policy::of(service);
    if policy.bypass(scope, service).is_some() {
        return Vec::new();
    }
    let families = candidate::families(service);
    let mut routes = Vec::with_capacity(service.ports.len() * families.len());
    for (place, port) in service.ports.iter().enumerate() {
        let name = port_name(service, port);
        for &family in &families {
            let decide = |frontends: Vec<Exposed>, only_local: bool| {
                let rules = &policy.rules;
                let done = Evaluation::of(state, here, service, port, rules, family, only_local);
                route(service, port, frontends, Arc::clone(&name), rules, &done, here)
            };
            let own = service.cluster_ips.iter().filter(|&&address| Family::of(address) == family);
            let own = own.filter(|&&address| state.local_device(address).is_none());
            let own = own.map(|&address| Frontend::new(address, port.port, port.protocol));
            let mut own: Vec<_> = own.map(|it| (FrontendKind::ClusterIp, it)).collect();
            let exposed = exposing.map(|it| it.of(state, service, place, family));
            let exposed = exposed.unwrap_or_default();
            // These lead where a ClusterIP leads, but whatever `internalTrafficPolicy` says, and for
            // clients of this node whatever `externalTrafficPolicy` says (kube-proxy: the endpoints of
            // `Cluster`).
            if service.internal_local {
                routes.extend((!exposed.is_empty()).then(|| decide(exposed, false)));
            } else {
                own.extend(exposed);
            }
            routes.extend((!own.is_empty()).then(|| decide(own, service.internal_local)));
        }
    }
    routes
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

/// The ignored annotations and fields of a Service, each with the rule that it broke; `None` if
/// there are none, or the Service has no ClusterIP to translate.
#[must_use]
pub fn ignored(service: &Service) -> Option<String> {
    let all = if has_frontends(service) { policy::of(service).ignored } else { Vec::new() };
    let sentences: Vec<_> = all.iter().map(ToString::to_string).collect();
    (!sentences.is_empty()).then(|| sentences.join("; "))
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

fn route(
    service: &Service,
    port: &Port,
    frontends: Vec<Exposed>,
    name: Arc<str>,
    rules: &Rules<'_>,
    done: &Evaluation<'_>,
    here: Here<'_>,
) -> Route {
    let chosen = |wanted| {
        let with = done.candidates.iter().zip(&done.statuses);
        with.filter(move |(_, status)| **status == wanted)
            .map(|(one, _)| Chosen::new(one.address, one.site.locality(here)))
            .collect()
    };
    let left = |status| !matches!(status, CandidateStatus::Chosen | CandidateStatus::Wider);
    Route {
        frontends,
        protocol: port.protocol,
        verdict: if done.chosen == 0 { Verdict::Refuse } else { Verdict::Route },
        created: service.created.clone(),
        tier: done.tier(),
        endpoints: chosen(CandidateStatus::Chosen),
        wider: chosen(CandidateStatus::Wider),
        spill: match rules {
            Rules::Keys(keys) if done.wider.is_some() => keys.spill.parts(),
            Rules::Keys(_) | Rules::OpenYurt { .. } | Rules::None => 0,
        },
        strict: service.internal_local || rules.are_strict(),
        affinity_seconds: service.affinity_seconds,
        serving: done
            .candidates
            .iter()
            .zip(&done.statuses)
            .filter(|(one, status)| left(**status) && one.serves())
            .map(|(one, _)| one.address)
            .collect(),
        name,
    }
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

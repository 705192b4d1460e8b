//! Routes: what the datapath does with connections, by Service port and address family.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use topo_lb_common::selection::SPILL_ONE;

use super::direct::{self, Direct, DirectDials};
use super::direct_return::{self, Choice, DirectReturn};
use super::evaluation::{By, CandidateStatus, Evaluation};
use super::exposed::{Apart, ByClients, Exposing, FrontendOfKind};
use super::homeward::{self, Homeward};
use super::label::Here;
use super::policy::{self, Policy};
use super::rules::Rules;
use super::scope::{self, Scope, is_headless, is_served};
use super::slow_start::Young;
use super::trial::Seen;
use super::verdict::{Chosen, Verdict};
use super::weights;
use super::{candidate, ejected};
use crate::cluster::service::Protocol;
use crate::cluster::{
    Clients, Created, Family, Frontend, FrontendKind, Port, Service, ServiceId, State,
};

/// The datapath's part of a decision, for one Service port and one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// What clients dial, all of this family and protocol, and for the same clients.
    pub frontends: Vec<FrontendOfKind>,
    /// The place of the Service port in `spec.ports`.
    pub place: usize,
    /// The Service port's protocol.
    pub protocol: Protocol,
    /// Route, refuse or bypass.
    pub verdict: Verdict,
    /// A refused connection gets no answer: `externalTrafficPolicy: Local` without an endpoint here, but
    /// with some elsewhere.
    pub drops: bool,
    /// The only sources that may dial the load balancer IPs among the frontends; `None`: everybody.
    pub source_ranges: Option<Arc<[IpNet]>>,
    /// `metadata.creationTimestamp`: the older of two claimants gets a frontend.
    pub created: Created,
    /// Index of the matching key.
    pub tier: Option<u8>,
    /// Endpoints of the chosen tier, or all with a share by weight; sorted, without duplicates.
    pub endpoints: Vec<Chosen>,
    /// How new connections divide among `endpoints`; empty: alike.
    pub parts: Vec<Part>,
    /// An endpoint gets less than its share, as it became Ready lately.
    pub starts: bool,
    /// Endpoints of the next wider tier, for spilled connections; sorted.
    pub wider: Vec<Chosen>,
    /// Share of new connections that spill, in parts of `selection::SPILL_ONE`, or `selection::LEASED`.
    pub spill: u16,
    /// Connections are refused if no endpoint matches, although the Service has endpoints.
    pub strict: bool,
    /// After how many failed connects in a row an endpoint is to be ejected; zero: never. 1–15.
    pub failures: u8,
    /// Session affinity in seconds.
    pub affinity_seconds: Option<u32>,
    /// Endpoints that serve but are not chosen, nor in `wider`: existing flows may stay. Sorted.
    pub serving: Vec<SocketAddr>,
    /// Which connections of clients of this node return to a nearer tier; `None`: none.
    pub homeward: Option<Homeward>,
    /// New connections of the same client get the same endpoint on every node, unless some spill.
    pub consistent: bool,
    /// With direct return, the tags of the nodes of endpoints on other nodes. Sorted.
    pub nodes: Arc<[(SocketAddr, u16)]>,
    /// `namespace/name:port` of the Service port for logs; a port without a name has its number.
    pub name: Arc<str>,
}

/// Endpoints that get a share of new connections together: by weight, and each as much as the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// At least 1.
    pub weight: u16,
    /// Sorted; at least one, in no other part.
    pub endpoints: Vec<Chosen>,
}

impl Route {
    /// What it does with clients that dial endpoints directly; `Allow`: it is for others.
    #[must_use]
    pub fn direct(&self) -> Direct {
        direct::of_frontends(&self.frontends)
    }

    /// Groups of endpoints, and the share of new connections that each group gets, of 1. The endpoints
    /// of a group get equally many.
    pub fn shares(&self) -> Vec<(&[Chosen], f64)> {
        let sum: f64 = self.parts.iter().map(|part| f64::from(part.weight)).sum();
        let spilled = match self.wider.len() {
            0 => 0.0,
            _ => f64::from(self.spill) / f64::from(SPILL_ONE),
        };
        let parts = self.parts.iter();
        match self.parts.is_empty() {
            true => vec![(&self.endpoints, 1.0 - spilled), (&self.wider, spilled)],
            false => parts.map(|it| (&*it.endpoints, f64::from(it.weight) / sum)).collect(),
        }
    }
}

/// The routes of a Service, by port and address family: one for its ClusterIPs, without those that a
/// device of this node has, and its other frontends. These have one of their own with
/// `internalTrafficPolicy: Local`, one more for clients outside who get other endpoints, and with direct return
/// one more for packets that other nodes send on. One
/// more is for clients that dial endpoints directly: it refuses them, or leads them where the ClusterIPs lead. A
/// headless Service has this one alone.
/// Empty if the Service is unknown, bypassed or without any of them.
#[must_use]
pub fn routes(
    state: &State,
    this_node: &str,
    scope: Scope,
    exposing: Option<&Exposing>,
    id: &ServiceId,
) -> Vec<Route> {
    routes_if(state, this_node, scope, exposing, id, None)
}

/// The same, as if connections returned to a nearer tier whether or not the Service asks for that: all that can have
/// [`Route::homeward`].
#[must_use]
pub fn returning_routes(
    state: &State,
    this_node: &str,
    scope: Scope,
    exposing: Option<&Exposing>,
    id: &ServiceId,
) -> Vec<Route> {
    let at_once = homeward::Setting { after: Duration::ZERO };
    routes_if(state, this_node, scope, exposing, id, Some(at_once))
}

/// `unasked`: when connections return to Services that do not say it.
fn routes_if(
    state: &State,
    this_node: &str,
    scope: Scope,
    exposing: Option<&Exposing>,
    id: &ServiceId,
    unasked: Option<homeward::Setting>,
) -> Vec<Route> {
    let Some(service) = state.service(id).filter(|service| is_served(service)) else {
        return Vec::new();
    };
    let here = Here::of(state, this_node);
    let policy = policy::of(state, Seen::From(this_node), service);
    let is_idle = is_headless(service) && policy.direct == Direct::Allow;
    if is_idle || policy.bypass(scope, service).is_some() {
        return Vec::new();
    }
    let families = candidate::families(service);
    let exposing = exposing.filter(|_| !is_headless(service));
    let apart = apart(&policy, service, exposing);
    let direct_return = DirectReturn::of(policy.direct_return, service, exposing);
    let choice = Choice::of(policy.choice, direct_return);
    let young = policy.slow_start.and_then(|it| Young::of(it, state, service));
    // About ClusterIPs.
    let local = service.internal_local && !is_headless(service);
    let mut routes = Vec::with_capacity(service.ports.len() * families.len());
    for (place, port) in service.ports.iter().enumerate() {
        let name = port_name(service, port);
        for &family in &families {
            let evaluate = |by| Evaluation::whole(state, here, (service, port), by, family);
            let rules = &policy.rules;
            let done = evaluate(policy.inside(local));
            let (mut own, ByClients { anywhere, outside, peers }) =
                frontends(state, service, exposing, place, family, apart);
            let nodes = match peers.is_empty() {
                true => Arc::default(),
                false => direct_return::nodes(&done, here),
            };
            let lead = |frontends, rules: &Rules<'_>, done: &Evaluation<'_>, only_local: bool| {
                let name = Arc::clone(&name);
                let mut route = route(service, (place, port), frontends, name, rules, done, here);
                if let Some(parts) = young.as_ref().and_then(|young| young.divide(done)) {
                    route.parts = of_parts(&parts, done, here);
                    route.starts = true;
                }
                let is_seen = state.ejections().unseen.is_none() && port.protocol == Protocol::Tcp;
                let ejection = ejected::in_force(state, service, &policy)
                    .filter(|_| is_seen && !is_headless(service));
                let failures = ejection.map_or(0, |it| it.failures);
                let (strict, nodes) = (only_local || route.strict, Arc::clone(&nodes));
                let asked = policy.return_after.or(unasked);
                let homeward = asked.filter(|_| returns(service, port, &route));
                let homeward = homeward.map(|it| Homeward::of(it, rules, done, here));
                Route { strict, failures, nodes, homeward, ..route }
            };
            // These lead where a ClusterIP leads, but whatever `internalTrafficPolicy` says, and for
            // clients of this node whatever `externalTrafficPolicy` says (kube-proxy: the endpoints of
            // `Cluster`).
            if !local {
                own.extend(anywhere);
            } else if !anywhere.is_empty() {
                routes.push(lead(anywhere, rules, &evaluate(policy.inside(false)), false));
            }
            routes.extend((!own.is_empty()).then(|| lead(own, rules, &done, local)));
            if policy.direct != Direct::Allow && scope::local(state, service, family).is_none() {
                let dials = DirectDials::of(policy.direct, state, (service, port), &done, here);
                let frontends = dials.map(|it| it.frontends(port)).unwrap_or_default();
                routes.extend(match policy.direct {
                    _ if frontends.is_empty() => None,
                    Direct::Steer => Some(lead(frontends, rules, &done, local)),
                    _ => Some(refusing(service, (place, port), Arc::clone(&name), frontends)),
                });
            }
            if !outside.is_empty() {
                let by = policy.for_outside(service);
                let mut route = lead(outside, by.rules, &evaluate(by), by.only_local);
                let exposure = service.exposure.as_ref();
                route.source_ranges = exposure.and_then(|it| it.limits(family)).cloned();
                route.consistent = choice == Choice::Consistent;
                routes.push(route);
            }
            // Also without an endpoint: that they are there says that the Service has direct return.
            if !peers.is_empty() {
                let done = evaluate(By::ON_THIS_NODE);
                routes.push(lead(peers, &Rules::None, &done, false));
            }
        }
    }
    routes
}

/// When routes of a Service change as time passes, in seconds since 1970: the share of an endpoint grows. `None`: none.
#[must_use]
pub fn next_step(state: &State, this_node: &str, id: &ServiceId) -> Option<i64> {
    let now = state.now()?;
    let mut lately = state.ready_since(id).peekable();
    lately.peek()?;
    let setting = policy::of(state, Seen::From(this_node), state.service(id)?).slow_start?;
    lately.filter_map(|(_, since)| setting.next(since, now)).min()
}

/// What becomes of clients that dial the endpoints of a headless Service: by port and family. Empty for every other
/// Service, and for one that does not say.
#[must_use]
pub fn headless_dials(
    state: &State,
    this_node: &str,
    scope: Scope,
    id: &ServiceId,
) -> Vec<(Family, DirectDials)> {
    let Some(service) = state.service(id).filter(|service| scope::has_direct(service)) else {
        return Vec::new();
    };
    let here = Here::of(state, this_node);
    let policy = policy::of(state, Seen::From(this_node), service);
    if policy.bypass(scope, service).is_some() {
        return Vec::new();
    }
    let ports = service.ports.iter().flat_map(|port| Family::BOTH.map(|family| (port, family)));
    let dials = |(port, family): (&Port, Family)| {
        let own = (service, port);
        let done = Evaluation::whole(state, here, own, policy.inside(false), family);
        Some((family, DirectDials::of(policy.direct, state, own, &done, here)?))
    };
    ports.filter_map(dials).collect()
}

/// Whether packets to a Service are sent on, by what its policy says for this node.
#[must_use]
pub fn returns_directly(
    state: &State,
    this_node: &str,
    exposing: &Exposing,
    service: &Service,
) -> bool {
    let policy = policy::of(state, Seen::From(this_node), service);
    DirectReturn::of(policy.direct_return, service, Some(exposing)) == DirectReturn::Yes
}

/// Which node ports, load balancer IPs and external IPs clients outside have for themselves, as they get other
/// endpoints there, or choose in another way.
pub(super) fn apart(policy: &Policy<'_>, service: &Service, exposing: Option<&Exposing>) -> Apart {
    let differs = service.external_local || policy.external.is_some();
    let chooses = policy.choice == Some(Choice::Consistent);
    Apart {
        all: exposing.is_some_and(|it| it.outside) && (differs || chooses),
        returns_directly: DirectReturn::of(policy.direct_return, service, exposing)
            == DirectReturn::Yes,
    }
}

/// The frontends of one family of the port at `place`: the ClusterIPs that no device of this node has, and
/// the others. `apart`: [`apart`].
pub(super) fn frontends(
    state: &State,
    service: &Service,
    exposing: Option<&Exposing>,
    place: usize,
    family: Family,
    apart: Apart,
) -> (Vec<FrontendOfKind>, ByClients) {
    let port = &service.ports[place];
    let own = service.cluster_ips.iter().filter(|&&address| Family::of(address) == family);
    let own = own.filter(|&&address| state.local_device(address).is_none());
    let own = own.map(|&address| Frontend::new(address, port.port, port.protocol));
    let exposed = exposing.map(|it| it.of(state, service, place, family)).unwrap_or_default();
    let others = ByClients::of(exposed, service, family, apart);
    (own.map(|it| (FrontendKind::ClusterIp, it)).collect(), others)
}

/// Whether connections by a route can return to a nearer tier: TCP connections of sockets of this node, which
/// no session affinity keeps at an endpoint.
fn returns(service: &Service, port: &Port, route: &Route) -> bool {
    let is_for_all = |(_, it): &FrontendOfKind| it.clients == Clients::Anywhere;
    let is_lasting = service.affinity_seconds.is_some();
    port.protocol == Protocol::Tcp && !is_lasting && route.frontends.iter().all(is_for_all)
}

/// The route that refuses clients who dial endpoints that the policy passes over.
fn refusing(
    service: &Service,
    (place, port): (usize, &Port),
    name: Arc<str>,
    frontends: Vec<FrontendOfKind>,
) -> Route {
    Route {
        frontends,
        place,
        protocol: port.protocol,
        verdict: Verdict::Refuse,
        drops: false,
        source_ranges: None,
        created: service.created,
        tier: None,
        endpoints: Vec::new(),
        parts: Vec::new(),
        starts: false,
        wider: Vec::new(),
        spill: 0,
        strict: true,
        failures: 0,
        affinity_seconds: None,
        serving: Vec::new(),
        homeward: None,
        consistent: false,
        nodes: Arc::default(),
        name,
    }
}

/// The route of clients anywhere to a Service port without frontends.
pub(super) fn of_evaluation(
    service: &Service,
    port: &Port,
    rules: &Rules<'_>,
    done: &Evaluation<'_>,
    here: Here<'_>,
) -> Route {
    route(service, (0, port), Vec::new(), port_name(service, port), rules, done, here)
}

fn route(
    service: &Service,
    (place, port): (usize, &Port),
    frontends: Vec<FrontendOfKind>,
    name: Arc<str>,
    rules: &Rules<'_>,
    done: &Evaluation<'_>,
    here: Here<'_>,
) -> Route {
    let of = |index| chosen_at(index, done, here);
    let chosen = |wanted: &[CandidateStatus]| {
        done.of_status(|status| wanted.contains(&status)).into_iter().map(of).collect()
    };
    let (own, wider): (&[_], &[_]) = match done.parts.is_empty() {
        true => (&[CandidateStatus::Chosen], &[CandidateStatus::Wider]),
        false => (&[CandidateStatus::Chosen, CandidateStatus::Wider], &[]),
    };
    let is_for_outside = frontends.iter().any(|(_, it)| it.clients == Clients::Outside);
    let left = |status| !matches!(status, CandidateStatus::Chosen | CandidateStatus::Wider);
    Route {
        frontends,
        place,
        protocol: port.protocol,
        verdict: if done.chosen == 0 { Verdict::Refuse } else { Verdict::Route },
        drops: is_for_outside && done.drops(service),
        source_ranges: None,
        created: service.created,
        tier: done.tier(),
        endpoints: chosen(own),
        parts: of_parts(&done.parts, done, here),
        starts: false,
        wider: chosen(wider),
        spill: done.wider.map_or(0, |(.., share)| share.parts()),
        strict: rules.are_strict(),
        failures: 0,
        affinity_seconds: service.affinity_seconds,
        serving: done
            .candidates
            .iter()
            .zip(&done.statuses)
            .filter(|(one, status)| left(**status) && one.serves())
            .map(|(one, _)| one.address)
            .collect(),
        homeward: None,
        consistent: false,
        nodes: Arc::default(),
        name,
    }
}

fn chosen_at(index: usize, done: &Evaluation<'_>, here: Here<'_>) -> Chosen {
    let one = &done.candidates[index];
    Chosen::new(one.address, one.site.locality(here))
}

fn of_parts(parts: &[weights::Part<'_>], done: &Evaluation<'_>, here: Here<'_>) -> Vec<Part> {
    let part = |part: &weights::Part<'_>| Part {
        weight: part.weight,
        endpoints: part.members.iter().map(|&index| chosen_at(index, done, here)).collect(),
    };
    parts.iter().map(part).collect()
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

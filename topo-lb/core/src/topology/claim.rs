//! Frontends that more than one Service port claims. The first [`Claim`] gets the frontend, so that all
//! nodes agree. The others get nothing there.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use crate::cluster::{Created, Frontend, FrontendKind, Port, ServiceId, State};

use super::exposed::Exposing;
use super::scope::{Scope, has_frontends};
use super::trial::Seen;
use super::{candidate, policy};

/// A Service port's claim to a frontend. By kind of frontend, then age, namespace, Service name, and place
/// in `spec.ports`, the first one gets it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claim {
    /// What the frontend's address is to the Service.
    pub kind: FrontendKind,
    created: Created,
    /// The Service.
    pub service: ServiceId,
    /// The Service port's place in `spec.ports`.
    pub place: u32,
}

impl Claim {
    /// Before every claim of a Service.
    #[must_use]
    pub fn first() -> Self {
        let (kind, service) = (FrontendKind::ClusterIp, ServiceId::default());
        Self { kind, created: Created::FIRST, service, place: 0 }
    }

    /// Whether the frontend is a ClusterIP.
    #[must_use]
    pub fn is_cluster_ip(&self) -> bool {
        self.kind == FrontendKind::ClusterIp
    }

    /// The claim of a Service that was created then.
    #[must_use]
    pub fn new(kind: FrontendKind, created: Created, service: &ServiceId, place: usize) -> Self {
        Self { kind, created, service: service.clone(), place: place as u32 }
    }
}

/// Frontends that more than one Service port claims, for an agent that handles everything. The first claim
/// gets the frontend. A Service port that claims it as two kinds has the first of these claims. Services that
/// are `left_out` claim nothing.
#[must_use]
pub fn contested(
    state: &State,
    scope: Scope,
    left_out: impl Fn(&ServiceId) -> bool,
) -> HashMap<Frontend, Vec<Claim>> {
    let exposing = Exposing::everything();
    let mut claims: HashMap<Frontend, Vec<Claim>> = HashMap::new();
    for id in state.services().filter(|id| !left_out(id)) {
        let Some(service) = state.service(id).filter(|service| has_frontends(service)) else {
            continue;
        };
        if policy::of(state, Seen::From(""), service).bypass(scope, service).is_some() {
            continue;
        }
        for (place, port) in service.ports.iter().enumerate() {
            let Port { port, protocol, .. } = *port;
            let mut claim = |kind, frontend| {
                let claim = Claim::new(kind, service.created, id, place);
                claims.entry(frontend).or_default().push(claim);
            };
            let ours = |&&address: &&IpAddr| state.local_device(address).is_none();
            for &address in service.cluster_ips.iter().filter(ours) {
                claim(FrontendKind::ClusterIp, Frontend::new(address, port, protocol));
            }
            let families = candidate::families(service).into_iter();
            let exposed = families.flat_map(|family| exposing.of(state, service, place, family));
            exposed.for_each(|(kind, frontend)| claim(kind, frontend));
        }
    }
    claims.retain(|_, claims| {
        claims.sort_unstable();
        let mut seen = HashSet::new();
        claims.retain(|claim| seen.insert((claim.service.clone(), claim.place)));
        claims.len() > 1
    });
    claims
}

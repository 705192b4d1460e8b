//! How much a Service asks for, counted from its spec before anything is made of it: its ports times its
//! addresses, and its ports times its endpoints, can be more than there is memory.

use std::collections::HashSet;

use super::exposed::{Apart, Exposing};
use super::route::{apart, frontends};
use super::scope::{Scope, is_served};
use super::trial::Seen;
use super::{candidate, policy};
use crate::cluster::{Family, Service, ServiceId, State};

/// The most that a Service may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Most {
    /// Ports, and frontends of a family.
    pub frontends: u64,
    /// Endpoints of all its ports: one of two ports counts twice.
    pub endpoints: u64,
}

/// Of what a Service asks for more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Excess {
    /// Ports, or frontends of a family.
    Frontends,
    /// Endpoints of all its ports.
    Endpoints,
}

/// Of what a Service asks for more than `most`; `None` also if topo-lb does not serve it. Takes as long as the
/// Service has ports, addresses and slices together.
#[must_use]
pub fn excess(
    state: &State,
    this_node: &str,
    scope: Scope,
    exposing: Option<&Exposing>,
    most: Most,
    id: &ServiceId,
) -> Option<Excess> {
    let service = state.service(id).filter(|service| is_served(service))?;
    let excess = |apart| {
        if most_frontends(state, service, exposing, apart) > most.frontends {
            return Some(Excess::Frontends);
        }
        has_more_endpoints(state, service, most.endpoints).then_some(Excess::Endpoints)
    };
    // The policy matters only to the few that are so large.
    excess(Apart { all: true, returns_directly: true })?;
    let policy = policy::of(state, Seen::From(this_node), service);
    if policy.bypass(scope, service).is_some() {
        return None;
    }
    excess(apart(&policy, service, exposing))
}

/// The ports, or the frontends of a family: what is more.
fn most_frontends(
    state: &State,
    service: &Service,
    exposing: Option<&Exposing>,
    apart: Apart,
) -> u64 {
    let has_node_port =
        |place: usize| service.exposure.as_ref().is_some_and(|it| it.node_port(place).is_some());
    // Ports differ only in whether they have a node port.
    let of_family = |family| -> u64 {
        let alike = [false, true].map(|has| {
            let mut places = (0..service.ports.len()).filter(|&place| has_node_port(place) == has);
            let Some(first) = places.next() else { return 0 };
            let (own, other) = frontends(state, service, exposing, first, family, apart);
            let each = own.len() + other.anywhere.len() + other.outside.len() + other.peers.len();
            each as u64 * (1 + places.count() as u64)
        });
        alike.iter().sum()
    };
    let families = candidate::families(service).into_iter().map(of_family);
    families.max().map_or(0, |frontends| frontends.max(service.ports.len() as u64))
}

/// Whether all ports together have more endpoints than this.
fn has_more_endpoints(state: &State, service: &Service, most: u64) -> bool {
    let slices = || state.slices(&service.id).map(|(_, slice)| slice);
    let sum = |(endpoints, ports): (usize, usize)| endpoints as u64 * ports as u64;
    // Hardly any Service needs a closer look.
    let at_most: u64 = slices().map(|it| sum((it.endpoints.len(), it.ports.len()))).sum();
    if at_most <= most {
        return false;
    }
    let own: HashSet<_> = service.ports.iter().map(|port| (&port.name, port.protocol)).collect();
    let families = candidate::families(service);
    let counts = slices().filter(|slice| {
        // The endpoints of a slice are of one family.
        let family = slice.endpoints.first().map(|one| Family::of(one.address));
        candidate::counts(slice, service) && family.is_some_and(|it| families.contains(&it))
    });
    let exactly = counts.map(|slice| {
        let ports = slice.ports.iter().filter(|it| own.contains(&(&it.name, it.protocol)));
        sum((slice.endpoints.len(), ports.count()))
    });
    exactly.sum::<u64>() > most
}

//! How much of a Service a load balancer reaches through this node.

use std::collections::HashSet;
use std::net::IpAddr;

use super::evacuation::Evacuation;
use super::evaluation::{CandidateStatus, Evaluation};
use super::label::Here;
use super::origin::Origin;
use super::policy::Policy;
use super::scope::Scope;
use super::trial::{self, Seen};
use super::{candidate, policy};
use crate::cluster::{Service, State, TopologyPolicy};

/// How many Ready endpoints clients outside get at this node: with `externalTrafficPolicy: Local` those on
/// it, as in kube-proxy (`LocalReadyEndpoints`, pkg/proxy/endpointschangetracker.go); with
/// `topo-lb.io/external-topology-keys` those of the tier that is chosen. Each counts once, whatever ports
/// it has, and a Pod with two families counts once. `None`: the Service is not handled.
#[must_use]
pub fn reached(state: &State, this_node: &str, service: &Service) -> Option<usize> {
    let here = Here::of(state, this_node);
    let policy = policy::of(state, Seen::From(this_node), service);
    if policy.bypass(Scope::All, service).is_some() {
        return None;
    }
    let by = policy.for_outside(service);
    if by.only_local && is_evacuated(state, here, &policy, service) {
        return Some(0);
    }
    let of_family = |family| {
        let mut ready = HashSet::<IpAddr>::new();
        for port in &service.ports {
            let done = Evaluation::of(state, here, (service, port), by, family).weighed(by, here);
            let all = done.candidates.iter().zip(&done.statuses);
            // What this node ejects is Ready all the same, so it counts.
            let chosen = all.filter(|(_, status)| **status == CandidateStatus::Chosen);
            let chosen = chosen.filter(|(one, _)| one.site.endpoint.ready);
            ready.extend(chosen.map(|(one, _)| one.address.ip()));
        }
        ready.len()
    };
    candidate::families(service).into_iter().map(of_family).max()
}

/// Whether load balancers are to leave this node: what evacuates the Services of all namespaces does so here, and
/// some Service has endpoints elsewhere.
#[must_use]
pub fn is_left(state: &State, this_node: &str) -> bool {
    let (here, place) = (Here::of(state, this_node), trial::place(this_node));
    let is_here = |text: &str| {
        let holds = |it: Evacuation<'_>| it.is_of(here) && it.holds(state.now(), place);
        Evacuation::read(text).is_ok_and(holds)
    };
    let is_of_all = |policy: &&TopologyPolicy| {
        let selects_all = policy.namespaces.0.is_empty() && policy.services.0.is_empty();
        let says = policy.policy.evacuate.as_deref().is_some_and(is_here);
        policy.id.is_of_cluster() && selects_all && says
    };
    let all = state.policies().filter(is_of_all);
    let origins: Vec<_> = all.map(|it| Origin::Policy(it.id.clone())).collect();
    let leaves = |service: &Service| {
        let policy = policy::of(state, Seen::From(this_node), service);
        let is_of_all = policy
            .evacuating
            .holding()
            .any(|(origin, it)| origins.contains(origin) && it.is_of(here));
        is_of_all && is_evacuated(state, here, &policy, service)
    };
    !origins.is_empty() && state.services().filter_map(|id| state.service(id)).any(leaves)
}

/// Whether this node is evacuated for a Service: some of its endpoints leave, so that clients are to go elsewhere.
fn is_evacuated(state: &State, here: Here<'_>, policy: &Policy<'_>, service: &Service) -> bool {
    let by = policy.inside(false);
    let leaves = |family| {
        let of = |port| Evaluation::of(state, here, (service, port), by, family).leaving.is_any();
        service.ports.iter().any(of)
    };
    by.evacuations.iter().any(|it| it.is_of(here))
        && candidate::families(service).into_iter().any(leaves)
}

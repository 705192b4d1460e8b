//! How much of a Service a load balancer reaches through this node.

use std::collections::HashSet;
use std::net::IpAddr;

use super::evaluation::{CandidateStatus, Evaluation};
use super::label::Here;
use super::scope::Scope;
use super::trial::Seen;
use super::{candidate, policy};
use crate::cluster::{Service, State};

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
    let (rules, weights, only_local) = policy.for_outside(service);
    let of_family = |family| {
        let mut ready = HashSet::<IpAddr>::new();
        for port in &service.ports {
            let done = Evaluation::of(state, here, service, port, rules, family, only_local);
            let done = done.weighed(weights, rules, here);
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

//! The decision for a Service, with explanations: its policy, and for each port what that chooses.

use crate::cluster::{Clients, KnownNodes, ServiceId, State};

use super::decision::Decision;
use super::label::Here;
use super::scope::{Bypass, Scope, has_frontends};
use super::trial::Seen;
use super::{ejected, node_labels, policy};

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

/// How many Services this node leaves alone because they have no policy; none in [`Scope::All`].
#[must_use]
pub fn without_policy(state: &State, this_node: &str, scope: Scope) -> usize {
    let is_left = |id: &&ServiceId| {
        let service = state.service(id).filter(|service| has_frontends(service));
        service.is_some_and(|service| {
            let policy = policy::of(state, Seen::From(this_node), service);
            policy.bypass(scope, service) == Some(Bypass::OutOfScope)
        })
    };
    if scope == Scope::All { 0 } else { state.services().filter(is_left).count() }
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
    policy.ejection = ejected::in_force(state, service, &policy).filter(|_| is_seen);
    let decision = |port| Decision::of(state, here, service, port, &policy, clients, bypass);
    service.ports.iter().take(most).map(decision).collect()
}

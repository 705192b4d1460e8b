//! Whether a decision reads labels of other Nodes. EndpointSlices have the node's name and usually
//! its zone; in Kubernetes 1.20 also its region and host name. Other labels must be read from the
//! Nodes, of which a large cluster has thousands.

use crate::cluster::Endpoint;
use crate::cluster::{KnownNodes, Service, ServiceId, State};

use super::label::{HOSTNAME, Here, NODEPOOL};
use super::named::has_name;
use super::openyurt::Reach;
use super::policy;
use super::rules::Rules;
use super::scope::{Scope, is_headless, is_served};
use super::spill::Spill;
use super::trial::Seen;
use super::validation::ANY;
use super::weights::Weights;

/// The label of other Nodes that this Service waits for; `None` if it can be decided now.
#[must_use]
pub fn waits_for<'a>(
    state: &'a State,
    this_node: &str,
    scope: Scope,
    id: &ServiceId,
) -> Option<&'a str> {
    match state.known_nodes() {
        KnownNodes::Own => reads_other_nodes(state, this_node, scope, id),
        KnownNodes::All => None,
    }
}

/// A label that the decision for this Service reads from a Node other than `this_node`, whether or
/// not `state` has that Node; `None` if it reads none.
#[must_use]
pub fn reads_other_nodes<'a>(
    state: &'a State,
    this_node: &str,
    scope: Scope,
    id: &ServiceId,
) -> Option<&'a str> {
    reads(state, Seen::From(this_node), this_node, scope, id)
}

/// Whether a Service counts Nodes by their labels, as `spill: auto` does.
#[must_use]
pub fn counts_nodes(state: &State, this_node: &str, id: &ServiceId) -> bool {
    let service = state.service(id);
    let policy = service.map(|service| policy::of(state, Seen::From(this_node), service));
    policy.is_some_and(|policy| counts(&policy.rules))
}

fn counts(rules: &Rules<'_>) -> bool {
    matches!(rules, Rules::Keys(keys) if keys.spill == Spill::Auto && keys.keys.len() > 1)
}

/// The same, with policies as they are `seen`.
pub(super) fn reads<'a>(
    state: &'a State,
    seen: Seen<'_>,
    this_node: &str,
    scope: Scope,
    id: &ServiceId,
) -> Option<&'a str> {
    let decides = |service: &&Service| is_served(service) || has_name(service);
    let service = state.service(id).filter(decides)?;
    let policy = policy::of(state, seen, service);
    if policy.bypass(scope, service).is_some() {
        return None;
    }
    let here = Here::of(state, this_node);
    let elsewhere = |lacks: &dyn Fn(&Endpoint) -> bool| {
        state
            .slices(id)
            .flat_map(|(_, slice)| &slice.endpoints)
            .filter(|endpoint| endpoint.node().is_some_and(|node| **node != *this_node))
            .any(lacks)
    };
    // `internalTrafficPolicy: Local` leaves only this node's endpoints, with known labels. It is about ClusterIPs.
    let only_local = service.internal_local && !is_headless(service);
    let inside = (!only_local || counts(&policy.rules)).then_some(policy.rules);
    let read = |rules: Rules<'a>| match rules {
        Rules::None => None,
        // Pools are sets of Nodes, so labels of slices do not count.
        Rules::OpenYurt { reach: Reach::Pool, .. } => {
            (here.pool().is_some() && elsewhere(&|_| true)).then_some(NODEPOOL)
        }
        Rules::OpenYurt { reach: Reach::Node, .. } => None,
        // All Nodes with this node's value are counted.
        Rules::Keys(ref keys) if counts(&rules) => {
            keys.keys.iter().copied().find(|&key| here.label(key).is_some())
        }
        Rules::Keys(keys) => keys.keys.into_iter().find(|&key| match here.label(key) {
            // A key that this node lacks matches no endpoint.
            None => false,
            // Host names are assumed to equal Node names if they do on this node.
            Some(own) if key == HOSTNAME && own == here.name => false,
            Some(_) => key != ANY && elsewhere(&|endpoint| endpoint.label(key).is_none()),
        }),
    };
    let weighed = policy
        .weights
        .as_ref()
        .and_then(Weights::label)
        .filter(|&label| !only_local && elsewhere(&|endpoint| endpoint.label(label).is_none()));
    let asked = policy.evacuating.all.iter().flat_map(|(_, it, _)| {
        it.labels.iter().map(|(key, _)| *key).chain(it.allow_strict.filter(|key| *key != ANY))
    });
    // Host names are assumed to equal Node names, as above.
    let are_names = here.label(HOSTNAME) == Some(here.name);
    let mut asked = asked.filter(|&key| !(only_local || key == HOSTNAME && are_names));
    let evacuated = asked.find(|key| elsewhere(&|endpoint| endpoint.label(key).is_none()));
    inside.into_iter().chain(policy.external).find_map(read).or(weighed).or(evacuated)
}

//! Which endpoints a node watches itself while it is cut off from its API server: those that its own new
//! connections get, and a few that could stand in for them.

use std::collections::HashMap;
use std::net::SocketAddr;

use topo_lb_common::backend::Locality;

use super::candidate;
use super::evaluation::{CandidateStatus, Evaluation};
use super::label::Here;
use super::policy;
use super::scope::{Scope, has_frontends, local};
use super::trial::Seen;
use crate::cluster::{Protocol, ServiceId, State};

/// Most endpoints of each distance that are watched as stand-ins.
const STAND_INS: usize = 4;

/// An endpoint that a node may watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    /// Its address.
    pub address: SocketAddr,
    /// How far it is.
    pub locality: Locality,
    /// New connections go there, or would if it answered. Otherwise it may stand in.
    pub is_used: bool,
}

/// The endpoints of a Service in groups, of which each has those of one TCP port in one address family. No
/// group for a Service that this node leaves alone.
#[must_use]
pub fn groups(state: &State, this_node: &str, scope: Scope, id: &ServiceId) -> Vec<Vec<Watched>> {
    let Some(service) = state.service(id).filter(|service| has_frontends(service)) else {
        return Vec::new();
    };
    let here = Here::of(state, this_node);
    let policy = policy::of(state, Seen::From(this_node), service);
    if policy.bypass(scope, service).is_some() {
        return Vec::new();
    }
    let by = policy.inside(service.internal_local);
    let mut groups = Vec::new();
    for port in service.ports.iter().filter(|port| port.protocol == Protocol::Tcp) {
        let families = candidate::families(service).into_iter();
        for family in families.filter(|&family| local(state, service, family).is_none()) {
            let done = Evaluation::whole(state, here, (service, port), by, family);
            let group = of(&done, here);
            groups.extend((!group.is_empty()).then_some(group));
        }
    }
    groups
}

fn of(done: &Evaluation<'_>, here: Here<'_>) -> Vec<Watched> {
    let (mut used, mut others) = (Vec::new(), Vec::new());
    for (candidate, status) in done.candidates.iter().zip(&done.statuses) {
        let (address, locality) = (candidate.address, candidate.site.locality(here));
        let watched = |is_used| Watched { address, locality, is_used };
        match status {
            CandidateStatus::Chosen
            | CandidateStatus::Wider
            | CandidateStatus::Ejected
            | CandidateStatus::Dead => used.push(watched(true)),
            CandidateStatus::Passed | CandidateStatus::Weightless => others.push(watched(false)),
            CandidateStatus::Unusable | CandidateStatus::Remote | CandidateStatus::Evacuated => {}
        }
    }
    let mut so_far = HashMap::<Locality, usize>::new();
    others.retain(|one| {
        let count = so_far.entry(one.locality).or_default();
        *count += 1;
        *count <= STAND_INS
    });
    used.append(&mut others);
    used
}

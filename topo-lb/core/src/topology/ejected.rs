//! Which endpoints of a Service this node ejects, and which it may eject, by its decisions.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::time::Duration;

use super::candidate;
use super::ejection::Setting;
use super::evaluation::{CandidateStatus, Evaluation};
use super::field::Field;
use super::label::Here;
use super::origin::Origin;
use super::policy::{self, Policy};
use super::scope::has_frontends;
use super::trial::Seen;
use super::validation::{Ignored, Rule};
use crate::cluster::ejection::most_ejected;
use crate::cluster::{Annotation, Family, Protocol, Service, ServiceId, State};

/// What holds on an island for Services that say nothing of ejection themselves: that of `"3"`.
const ISLAND: Setting = Setting { failures: 3, first: Duration::from_secs(30), most: 50 };

/// When endpoints of a Service are ejected: as it says, or while the node is an island.
pub(super) fn in_force(state: &State, service: &Service, policy: &Policy<'_>) -> Option<Setting> {
    let is_watched = || policy.handled && state.ejections().watches(&service.id);
    policy.ejection.or_else(|| is_watched().then_some(ISLAND))
}

/// That ejection has no effect on a node that does not see failures.
pub(super) fn unseen(state: &State, policy: &Policy<'_>) -> Option<Ignored> {
    let is_asked = policy.handled && policy.ejection.is_some();
    let why = state.ejections().unseen.as_ref().filter(|_| is_asked)?;
    let rule = Rule::EjectionUnseen { why: why.to_string() };
    Some(Ignored { origin: Origin::Service, what: Field::Of(Annotation::Ejection), rule })
}

/// The setting of a Service; `None`: it does not ask for ejection, or this node does not see failures.
#[must_use]
pub fn setting(state: &State, this_node: &str, id: &ServiceId) -> Option<Setting> {
    let service = state.service(id).filter(|service| has_frontends(service))?;
    let policy = policy::of(state, Seen::From(this_node), service);
    let setting = in_force(state, service, &policy);
    setting.filter(|_| policy.handled && state.ejections().unseen.is_none())
}

/// The setting, if new connections of this node go to this endpoint, and one more endpoint of its tier
/// may be ejected.
#[must_use]
pub fn may_eject(
    state: &State,
    this_node: &str,
    id: &ServiceId,
    endpoint: SocketAddr,
) -> Option<Setting> {
    let setting = setting(state, this_node, id)?;
    let has_room = |done: &Evaluation<'_>| {
        let found = done.candidates.binary_search_by_key(&endpoint, |one| one.address).ok();
        let Some(status) = found.map(|index| done.statuses[index]) else { return false };
        let left = done.statuses.iter().filter(|other| **other == status).count();
        let out = match status {
            CandidateStatus::Chosen => done.ejected.chosen,
            CandidateStatus::Wider => done.ejected.wider,
            _ => return false,
        };
        out < most_ejected(left + out, setting.most)
    };
    evaluations(state, this_node, id).iter().any(has_room).then_some(setting)
}

/// The endpoints of a Service that this node ejects.
#[must_use]
pub fn ejected(state: &State, this_node: &str, id: &ServiceId) -> HashSet<SocketAddr> {
    let all = evaluations(state, this_node, id);
    let out = all.iter().flat_map(|done| {
        let each = done.candidates.iter().zip(&done.statuses);
        each.filter(|(_, status)| **status == CandidateStatus::Ejected).map(|(one, _)| one.address)
    });
    out.collect()
}

/// Another endpoint of the Service port, to which new connections go; as near as this one, if there is
/// one.
#[must_use]
pub fn fellow(
    state: &State,
    this_node: &str,
    id: &ServiceId,
    endpoint: SocketAddr,
) -> Option<SocketAddr> {
    let here = Here::of(state, this_node);
    let all = evaluations(state, this_node, id);
    let of_one = |done: &Evaluation<'_>| -> Option<SocketAddr> {
        let place = done.candidates.binary_search_by_key(&endpoint, |one| one.address).ok()?;
        let locality = done.candidates[place].site.locality(here);
        let each = done.candidates.iter().zip(&done.statuses);
        let used = each.filter(|(_, status)| {
            matches!(status, CandidateStatus::Chosen | CandidateStatus::Wider)
        });
        let nearest = used.min_by_key(|(one, _)| one.site.locality(here) != locality);
        nearest.map(|(one, _)| one.address)
    };
    all.iter().find_map(of_one)
}

/// The decisions for clients of this node at a Service's ClusterIPs, of its TCP ports.
fn evaluations<'a>(state: &'a State, this_node: &'a str, id: &ServiceId) -> Vec<Evaluation<'a>> {
    let Some(service) = state.service(id) else { return Vec::new() };
    let (here, policy) =
        (Here::of(state, this_node), policy::of(state, Seen::From(this_node), service));
    let ports = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
    let of_port = |port| {
        let of_family = move |family| (port, family);
        candidate::families(service).into_iter().map(of_family)
    };
    let by = policy.inside(service.internal_local);
    let of = |(port, family)| Evaluation::whole(state, here, (service, port), by, family);
    ports.flat_map(of_port).map(of).collect()
}

/// The Ready endpoints of a Service.
#[must_use]
pub fn ready(state: &State, id: &ServiceId) -> HashSet<SocketAddr> {
    let Some(service) = state.service(id) else { return HashSet::new() };
    let all = service.ports.iter().flat_map(|port| {
        Family::BOTH.into_iter().flat_map(|family| candidate::of(state, service, port, family))
    });
    all.filter(|one| one.site.endpoint.ready).map(|one| one.address).collect()
}

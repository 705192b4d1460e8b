//! Endpoints that do not answer, as a node has found that is cut off from its API server. They count as
//! not usable before a policy chooses, so the next tier takes over where a whole one is dead.

use super::candidate::Candidate;
use super::ejection::Setting;
use super::policy::Policy;
use crate::cluster::{Port, Protocol, Service, State};

/// What holds on an island for Services that say nothing of ejection themselves: that of `"3"`.
const ISLAND: Setting =
    Setting { failures: 3, first: std::time::Duration::from_secs(30), most: 50 };

/// Divides usable candidates into those that may be alive, and the dead; never are all dead. Both are
/// indices of `candidates`, which are sorted by address.
pub(super) fn divide(
    state: &State,
    (service, port): (&Service, &Port),
    candidates: &[Candidate<'_>],
    usable: Vec<usize>,
) -> (Vec<usize>, Vec<usize>) {
    let dead = state.ejections().dead(&service.id);
    // Datagrams are not probed, and a Service may have the same port for both.
    if dead.is_empty() || port.protocol != Protocol::Tcp {
        return (usable, Vec::new());
    }
    let is_dead = |index: &usize| dead.binary_search(&candidates[*index].address).is_ok();
    let (gone, left): (Vec<_>, Vec<_>) = usable.iter().partition(|index| is_dead(index));
    if left.is_empty() { (usable, Vec::new()) } else { (left, gone) }
}

/// When endpoints of a Service are ejected: as it says, or while the node is an island.
pub(super) fn ejection(state: &State, service: &Service, policy: &Policy<'_>) -> Option<Setting> {
    let is_watched = || policy.handled && state.ejections().watches(&service.id);
    policy.ejection.or_else(|| is_watched().then_some(ISLAND))
}

//! Endpoints that do not answer, as a node has found that is cut off from its API server. They count as
//! not usable before a policy chooses, so the next tier takes over where a whole one is dead.

use super::candidate::Candidate;
use crate::cluster::{Port, Protocol, Service, State};

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

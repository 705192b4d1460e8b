//! Whether the zones of a cluster are OpenYurt's node pools.

use std::collections::BTreeSet;

use super::{Finding, Rule};
use crate::cluster::State;
use crate::topology::label::{NODEPOOL, ZONE};

/// What the finding is about: not one Node, but all of them.
const NODES: &str = "Nodes";

/// A finding if each Node is in the zone that has the name of its pool, or has neither. What says zone then
/// means a pool.
pub(super) fn look(state: &State, findings: &mut Vec<Finding>) {
    let mut pools = BTreeSet::new();
    for (_, labels) in state.nodes() {
        match (labels.get(NODEPOOL), labels.get(ZONE)) {
            (None, None) => {}
            (Some(pool), zone) if zone == Some(pool) => {
                pools.insert(pool);
            }
            _ => return,
        }
    }
    if pools.is_empty() {
        return;
    }
    let message = format!(
        "zones are node pools, {} in all: each Node with one of the labels has {ZONE} equal to {NODEPOOL}; \
         where plan, metrics and prices say zone, they mean a pool",
        pools.len(),
    );
    findings.push(Finding::of("", NODES, Rule::ZonesArePools, message));
}

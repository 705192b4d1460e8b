//! How many of the bytes that clients of a Service port moved would leave their zone, before the change
//! and after it.

use std::sync::Arc;

use super::figures::ByNode;
use super::load::Load;
use super::{Both, Bytes};
use crate::topology::label::{REGION, ZONE};

/// The bytes of a Service port with these figures. What has left its group is known if nodes are grouped by zone or
/// region.
pub(super) fn bytes(figures: &ByNode, pair: &Both<Option<Arc<Load<'_>>>>, label: &str) -> Bytes {
    let [before, after] =
        [&pair.before, &pair.after].map(|load| expected(figures, load.as_deref()));
    Bytes {
        moved: figures.values().map(|counted| counted.all()).sum(),
        crossed: match label {
            ZONE => Some(figures.values().map(|counted| counted.far).sum()),
            REGION => Some(figures.values().map(|counted| counted.beyond).sum()),
            _ => None,
        },
        crossing: Both { before: before.0, after: after.0 },
        stopped: Both { before: before.1, after: after.1 },
    }
}

/// The bytes that leave their group, and those of clients that get no endpoint. A node's bytes follow its
/// connections; those of a node that is not there follow the connections of all.
fn expected(figures: &ByNode, load: Option<&Load<'_>>) -> (f64, f64) {
    let total: f64 = figures.values().map(|counted| counted.all()).sum();
    let Some(load) = load else { return (0.0, total) };
    // Sorted, as the figures are.
    let named = figures.iter().filter_map(|(node, own)| Some((node.as_deref()?, own.all())));
    let named: Vec<_> = named.collect();
    let (mut crossing, mut stopped, mut rest) = (0.0, 0.0, total);
    for (bytes, share) in load.shares(&named) {
        crossing += bytes * share.crossing;
        stopped += bytes * share.stopped;
        rest -= bytes;
    }
    // What floating-point numbers lose is no bytes.
    let rest = if rest > total * 1e-12 { rest } else { 0.0 };
    let mean = load.mean();
    (crossing + rest * mean.crossing, stopped + rest * mean.stopped)
}

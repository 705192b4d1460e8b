//! How many of the bytes that clients of a Service port moved would leave their zone, before the change
//! and after it.

use super::figures::ByNode;
use super::load::Load;
use super::{Both, Bytes};

/// The bytes of a Service port with these figures, whose `measured` crossing is known if nodes are grouped by zone.
pub(super) fn bytes(figures: &ByNode, pair: &Both<Option<Load<'_>>>, by_zone: bool) -> Bytes {
    let [before, after] = [&pair.before, &pair.after].map(|load| expected(figures, load.as_ref()));
    Bytes {
        moved: figures.values().map(|counted| counted.all()).sum(),
        crossed: by_zone.then(|| figures.values().map(|counted| counted.far).sum()),
        crossing: Both { before: before.0, after: after.0 },
        stopped: Both { before: before.1, after: after.1 },
    }
}

/// The bytes that leave their group, and those of clients that get no endpoint. A node's bytes follow its
/// connections; those of a node that is not there follow the connections of all.
fn expected(figures: &ByNode, load: Option<&Load<'_>>) -> (f64, f64) {
    let (mut crossing, mut stopped) = (0.0, 0.0);
    for (node, counted) in figures {
        let all = counted.all();
        let Some(load) = load else {
            stopped += all;
            continue;
        };
        let share = node.as_deref().and_then(|node| load.share(node));
        let share = share.unwrap_or_else(|| load.mean());
        crossing += all * share.crossing;
        stopped += all * share.stopped;
    }
    (crossing, stopped)
}

//! Which looks are complete: a time line without the traffic of a node that is away would show a trough that
//! never was. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::newest::Newest;
use crate::commands::top::Rate;

/// A look that lacks less than this share of the traffic is complete.
const LITTLE: f64 = 0.01;
/// A node that is away for longer is none of those that count.
const AWAY: Duration = Duration::from_mins(2);

/// What each node did when it answered last.
#[derive(Debug, Default)]
pub(super) struct Gaps(BTreeMap<Arc<str>, (Instant, f64)>);

impl Gaps {
    /// Takes a look. Returns whether the nodes that have not answered had little traffic before. `is_there`:
    /// whether the cluster still has a node.
    pub(super) fn look(
        &mut self,
        newest: &Newest,
        now: Instant,
        is_there: impl Fn(&str) -> bool,
    ) -> bool {
        self.0.retain(|node, (seen, _)| is_there(node) && now.duration_since(*seen) <= AWAY);
        for node in &newest.answered {
            self.0.insert(Arc::clone(node), (now, 0.0));
        }
        for (node, rate) in newest.rows.iter().flat_map(|row| &row.nodes) {
            if let Some((_, size)) = self.0.get_mut(node) {
                *size += weight(rate);
            }
        }
        let of = |is_away: bool| {
            let nodes =
                self.0.iter().filter(|(node, _)| newest.answered.contains(*node) != is_away);
            nodes.map(|(_, (_, size))| size).sum::<f64>()
        };
        let away = of(true);
        !newest.answered.is_empty() && away <= LITTLE * (away + of(false))
    }
}

/// One number for connections and bytes together.
pub(super) fn weight(rate: &Rate) -> f64 {
    rate.all() + rate.bytes.iter().sum::<f64>() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::top::Row;

    /// A look at these nodes, with their connections a second.
    fn look(nodes: &[(&str, f64)]) -> Newest {
        let rate = |count| Rate { connections: [count, 0.0, 0.0, 0.0], ..Rate::default() };
        let nodes = nodes.iter().map(|(node, count)| (Arc::from(*node), rate(*count)));
        let nodes: BTreeMap<_, _> = nodes.collect();
        let answered = nodes.keys().cloned().collect();
        Newest { rows: vec![Row { nodes, ..Row::default() }], answered, ..Newest::default() }
    }

    #[test]
    fn a_look_without_a_node_that_had_traffic_is_a_gap_until_it_is_back_or_gone() {
        let (mut gaps, begin) = (Gaps::default(), Instant::now());
        let mut at = |second, nodes: &[(&str, f64)], gone: &str| {
            gaps.look(&look(nodes), begin + Duration::from_secs(second), |node| node != gone)
        };
        assert!(!at(0, &[], ""), "nobody has answered");
        assert!(at(2, &[("big", 500.0), ("small", 90.0), ("tiny", 1.0)], ""));
        assert!(at(4, &[("big", 500.0), ("small", 90.0)], ""), "tiny had little");
        assert!(!at(6, &[("small", 90.0)], ""));
        assert!(!at(8, &[], ""));
        assert!(at(10, &[("big", 400.0), ("small", 90.0)], ""), "both are back");
        assert!(at(12, &[("big", 400.0)], "small"), "the cluster has no such node any more");
        assert!(!at(14, &[("new", 300.0)], ""));
        assert!(!at(132, &[("new", 300.0)], ""));
        assert!(at(133, &[("new", 300.0)], ""), "away for two minutes");
    }
}

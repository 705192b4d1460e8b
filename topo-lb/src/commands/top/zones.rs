//! Bytes that nodes have moved to each zone, and their rate between two moments. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::moment::{Doubts, Moment, Moved, Zones};
use super::traffic::{are_possible, grown};

/// Bytes a second between two moments, of the nodes that measured them at both. What no node can have
/// done is left out, and its node has a sentence.
pub(crate) fn zone_rates(before: &Moment, after: &Moment) -> (BTreeMap<Arc<str>, Zones>, Doubts) {
    let both =
        after.zones.iter().filter_map(|(node, now)| Some((node, now, before.zones.get(node)?)));
    // A node that changed its zone counts what it moved within the old one as moved within the new one.
    let rates = both.filter(|(_, now, then)| !now.to.is_empty() && now.own == then.own);
    let rates = rates.map(|(node, now, then)| {
        let seconds = after.seconds_since(before, node);
        let rate = |(zone, now): (&Arc<str>, &Moved)| {
            let then = then.to.get(zone).copied().unwrap_or_default();
            let sent = grown(then.sent, now.sent) / seconds;
            let received = grown(then.received, now.received) / seconds;
            (Arc::clone(zone), Moved { sent, received })
        };
        let to = now.to.iter().map(rate).filter(|(_, rate)| *rate != Moved::default()).collect();
        (Arc::clone(node), Zones { own: Arc::clone(&now.own), to, others: None })
    });
    let (possible, others): (BTreeMap<_, _>, BTreeMap<_, _>) = rates.partition(|(_, zones)| {
        zones.to.values().all(|it| [it.sent, it.received].into_iter().all(are_possible))
    });
    let doubt = "its counts by zone are impossible and left out";
    (possible, others.into_keys().map(|node| (node, doubt.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A node, its zone, and what it moved to others.
    type Of<'a> = (&'a str, &'a str, &'a [(&'a str, f64)]);

    fn moment(at: Instant, nodes: &[Of<'_>]) -> Moment {
        let zones = nodes.iter().map(|(node, own, to)| {
            let moved = |bytes: f64| Moved { sent: bytes / 4.0, received: bytes * 3.0 / 4.0 };
            let to = to.iter().map(|(zone, bytes)| ((*zone).into(), moved(*bytes))).collect();
            ((*node).into(), Zones { own: (*own).into(), to, others: None })
        });
        Moment { zones: zones.collect(), ..Moment::at(at) }
    }

    #[test]
    fn only_nodes_that_measured_twice_from_one_zone_have_rates() {
        let begin = Instant::now();
        let before = [
            ("n1", "a", &[("a", 10.0), ("b", 100.0)][..]),
            ("restarted", "a", &[("b", 900.0)]),
            ("moved", "a", &[("a", 5.0)]),
            ("huge", "a", &[]),
            ("nan", "a", &[]),
            ("below", "a", &[]),
            ("without", "", &[]),
        ];
        let after = [
            ("n1", "a", &[("a", 10.0), ("b", 140.0), ("c", 6.0)][..]),
            ("restarted", "a", &[("b", 8.0)]),
            ("moved", "b", &[("b", 5.0)]),
            ("new", "a", &[("a", 1.0)]),
            ("huge", "a", &[("b", 1e300)]),
            ("nan", "a", &[("b", f64::NAN)]),
            ("below", "a", &[("b", -1.0)]),
            ("without", "", &[]),
        ];
        let end = moment(begin + Duration::from_secs(2), &after);
        let wanted =
            [("n1", "a", &[("b", 20.0), ("c", 3.0)][..]), ("restarted", "a", &[("b", 4.0)])];
        let (zones, doubts) = zone_rates(&moment(begin, &before), &end);
        assert_eq!(zones, moment(begin, &wanted).zones);
        assert_eq!(doubts.keys().map(AsRef::as_ref).collect::<Vec<_>>(), ["below", "huge", "nan"]);
        assert_eq!(doubts["nan"], "its counts by zone are impossible and left out");
    }
}

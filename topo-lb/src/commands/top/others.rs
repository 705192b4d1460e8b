//! Bytes that went to no Service, by what they went to, and their rate between two moments, in words. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::cells::printable;
use super::moment::{Moment, Moved};
use super::traffic::{Row, are_possible, grown};
use topo_lb_core::explain::some;
use topo_lb_core::magnitude;
use topo_lb_core::metrics::Tier;

/// Most names in a sentence.
const NAMED: usize = 3;

/// What agents tell apart by the label `to`, in words.
const KINDS: [(&str, &str); 3] = [
    ("pods", "to Pods, but to no Service's port"),
    ("unknown", "to endpoints of Services that were not found"),
    ("elsewhere", "elsewhere"),
];

/// Bytes a second by what they went to, and of how many nodes.
fn rates(before: &Moment, after: &Moment) -> (BTreeMap<Arc<str>, f64>, usize) {
    let (mut sums, mut nodes) = (BTreeMap::<Arc<str>, f64>::new(), 0);
    for (node, now) in &after.zones {
        let then = before.zones.get(node).and_then(|zones| zones.others.as_ref());
        let (Some(now), Some(then)) = (&now.others, then) else { continue };
        let seconds = after.seconds_since(before, node);
        nodes += 1;
        for (to, now) in now {
            let Moved { sent, received } = then.get(to).copied().unwrap_or_default();
            let rate = (grown(sent, now.sent) + grown(received, now.received)) / seconds;
            if are_possible(rate) {
                *sums.entry(Arc::clone(to)).or_default() += rate;
            }
        }
    }
    (sums, nodes)
}

/// What went to no Service between two moments; `None` if no node counts it.
pub(super) fn sentence(before: &Moment, after: &Moment) -> Option<String> {
    let (rates, nodes) = rates(before, after);
    if nodes == 0 {
        return None;
    }
    let all = after.nodes.values().filter(|answer| answer.is_ok()).count();
    let of = if nodes < all { format!(" ({nodes} of {all} nodes)") } else { String::new() };
    let parts = KINDS.map(|(kind, words)| {
        let rate = rates.get(kind).copied().unwrap_or_default();
        format!("{}/s {words}", magnitude::bytes(rate))
    });
    Some(format!("To no Service{of}: {}; out of zone –", parts.join(", ")))
}

/// The Services whose endpoints clients dial directly: their bytes count where they go, and their connections do not.
pub(super) fn direct(rows: &[Row]) -> Option<String> {
    let rate = |row: &Row| row.tiers.get(&Tier::Direct).map_or(0.0, |it| it.bytes);
    let mut dialled: Vec<_> = rows.iter().filter(|row| rate(row) > 0.0).collect();
    dialled.sort_by(|one, other| rate(other).total_cmp(&rate(one)));
    let named: Vec<_> = dialled
        .iter()
        .map(|row| format!("{} {}/s", printable(&row.service), magnitude::bytes(rate(row))))
        .collect();
    (!named.is_empty()).then(|| {
        let named = some(named.iter().map(String::as_str), NAMED);
        format!("Dialled directly, and in bytes alone: {named}")
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::moment::{Others, Traffic, Zones};
    use super::super::traffic::TierRate;
    use super::*;

    fn moment(at: Instant, nodes: &[(&str, Option<f64>)]) -> Moment {
        let others = |bytes: f64| {
            let moved = Moved { sent: bytes, received: bytes };
            Others::from([("pods".into(), moved), ("moon".into(), moved)])
        };
        let zones = nodes.iter().map(|(node, bytes)| {
            ((*node).into(), Zones { others: bytes.map(others), ..Zones::default() })
        });
        let answers = nodes.iter().map(|(node, _)| ((*node).into(), Ok(Traffic::new())));
        Moment { zones: zones.collect(), nodes: answers.collect(), ..Moment::at(at) }
    }

    #[test]
    fn what_went_to_no_service_is_told_without_a_distance_if_somebody_counts_it() {
        let begin = Instant::now();
        let said = |before: &[(&str, Option<f64>)], after: &[(&str, Option<f64>)]| {
            sentence(&moment(begin, before), &moment(begin + Duration::from_secs(2), after))
        };
        assert_eq!(said(&[("old", None)], &[("old", None)]), None, "it is not known");
        let all =
            said(&[("n", Some(1e3)), ("m", Some(0.0))], &[("n", Some(3e3)), ("m", Some(1e3))]);
        let wanted = "To no Service: 3.0 kB/s to Pods, but to no Service's port, 0 B/s to endpoints of Services that \
                      were not found, 0 B/s elsewhere; out of zone –";
        assert_eq!(all.as_deref(), Some(wanted));
        // One that restarted counts from zero, and one that counts less does not count.
        let some = said(&[("n", Some(9e3)), ("old", None)], &[("n", Some(1e3)), ("old", None)]);
        let some = some.expect("a sentence");
        assert!(some.starts_with("To no Service (1 of 2 nodes): 1.0 kB/s to Pods"), "{some}");
    }

    #[test]
    fn what_is_dialled_directly_is_named_by_its_bytes() {
        let row = |service: &str, tier, bytes| Row {
            service: service.into(),
            tiers: [(tier, TierRate { bytes, ..TierRate::default() })].into(),
            ..Row::default()
        };
        let rows = [
            row("a/left", Tier::Left, 9.0),
            row("a/few", Tier::Direct, 2.0),
            row("a/many", Tier::Direct, 5e3),
        ];
        let said = direct(&rows).expect("a sentence");
        assert_eq!(said, "Dialled directly, and in bytes alone: a/many 5.0 kB/s, a/few 2.0 B/s");
        assert_eq!(direct(&rows[..1]), None);
    }
}

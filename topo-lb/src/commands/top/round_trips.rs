//! Round trips of TCP connections between two moments, by locality.

use std::sync::Arc;

use topo_lb_common::backend::Locality;
use topo_lb_common::totals::{RTT_LIMITS, RTT_PLACES};

use super::moment::{ByLocality, Doubts, Moment, RoundTrips};
use super::traffic::MOST_CONNECTIONS;

const MICROS: f64 = 1_000_000.0;

/// The upper limit of a place in seconds; the last one has none.
pub(super) fn limit(place: usize) -> f64 {
    RTT_LIMITS.get(place).map_or(f64::INFINITY, |limit| f64::from(*limit) / MICROS)
}

/// The median round trip of the connections that ended between two moments, in seconds; `None` without
/// any. Only nodes that answered at both count. What no node can have counted is left out, and its node
/// has a sentence.
pub(super) fn medians(before: &Moment, after: &Moment) -> (ByLocality<Option<f64>>, Doubts) {
    let (mut ended, mut doubts) = (RoundTrips::default(), Doubts::new());
    for (node, now) in &after.round_trips {
        let Some(then) = before.round_trips.get(node) else { continue };
        let mut grown = *now;
        for (now, then) in grown.iter_mut().zip(then) {
            // As Prometheus does: counters that went back have begun again at zero.
            let is_anew = now.iter().zip(then).any(|(now, then)| now < then);
            now.iter_mut().zip(then).filter(|_| !is_anew).for_each(|(now, then)| *now -= then);
        }
        let most = MOST_CONNECTIONS * after.seconds_since(before, node);
        if grown.iter().flatten().all(|it| (0.0..=most).contains(it)) {
            let pairs = ended.iter_mut().flatten().zip(grown.iter().flatten());
            pairs.for_each(|(sum, more)| *sum += more);
        } else {
            let doubt = "its counts of round trips are impossible and left out";
            doubts.insert(Arc::clone(node), doubt.to_owned());
        }
    }
    (ended.map(|places| median(&places)), doubts)
}

/// As `histogram_quantile` of Prometheus: connections of a place are evenly between its limits.
fn median(places: &[f64; RTT_PLACES]) -> Option<f64> {
    let half = places.iter().sum::<f64>() / 2.0;
    let (mut below, mut from) = (0.0, 0.0);
    for (place, count) in places.iter().enumerate() {
        if half > 0.0 && below + count >= half {
            let to = if limit(place).is_finite() { limit(place) } else { from };
            return Some(from + (to - from) * (half - below) / count);
        }
        (below, from) = (below + count, limit(place));
    }
    None
}

/// The medians as a text: `round trips node 0.1 ms, zone 0.4 ms`; empty without any.
pub(super) fn in_words(medians: &ByLocality<Option<f64>>) -> String {
    let known = Locality::ALL.into_iter().zip(medians).filter_map(|(locality, median)| {
        let millis = (*median)? * 1000.0;
        let digits = if millis < 9.95 { 1 + usize::from(millis < 0.1) } else { 0 };
        Some(format!("{} {millis:.digits$} ms", locality.name()))
    });
    let known: Vec<_> = known.collect();
    if known.is_empty() { String::new() } else { format!("round trips {}", known.join(", ")) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use super::*;

    fn moment(nodes: &[(&str, usize, f64)]) -> Moment {
        let mut round_trips = BTreeMap::new();
        for (node, place, count) in nodes {
            let mut of = RoundTrips::default();
            of[Locality::Zone as usize][*place] = *count;
            round_trips.insert((*node).into(), of);
        }
        Moment { round_trips, ..Moment::at(Instant::now()) }
    }

    #[test]
    fn the_median_is_of_the_connections_between() {
        // Four of 64 to 128 µs on one node, four of 32 to 64 µs on the other, which has restarted.
        let nothing = ["c", "huge", "below", "nan"].map(|node| (node, 9, 0.0));
        let before = [("a", 2, 10.0), ("b", 1, 100.0)].into_iter().chain(nothing);
        let before = moment(&before.collect::<Vec<_>>());
        let mut after = moment(&[
            ("a", 2, 14.0),
            ("b", 1, 4.0),
            ("new", 12, 50.0),
            ("huge", 9, 1e300),
            ("below", 9, -1.0),
            ("nan", 9, f64::NAN),
        ]);
        after.at = before.at + Duration::from_secs(1);
        let (medians, doubts) = medians(&before, &after);
        assert_eq!(doubts.keys().map(AsRef::as_ref).collect::<Vec<_>>(), ["below", "huge", "nan"]);
        assert_eq!(medians, [None, Some(64e-6), None, None]);
        assert_eq!(in_words(&medians), "round trips zone 0.06 ms");
    }

    #[test]
    fn what_is_above_the_last_limit_counts_as_that() {
        let mut places = [0.0; RTT_PLACES];
        assert_eq!(median(&places), None);
        places[RTT_PLACES - 1] = 3.0;
        assert_eq!(median(&places), Some(limit(RTT_PLACES - 2)));
        assert_eq!(in_words(&[None; 4]), "");
        let told = in_words(&[Some(1e-3), Some(0.25), None, Some(1e-5)]);
        assert_eq!(told, "round trips node 1.0 ms, zone 250 ms, elsewhere 0.01 ms");
    }
}

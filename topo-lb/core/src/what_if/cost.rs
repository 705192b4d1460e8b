//! What the bytes of a change cost: those that leave their zone, and those of them that leave their region.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Both, Bytes, Figures, Prices, Proxied, ServicePort, compare, months};
use crate::cluster::State;
use crate::topology::label::{REGION, ZONE};

/// The cost of what changes. Its JSON is a fixed interface.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Cost {
    /// Money of the counted time.
    pub money: Both<f64>,
    /// How many times that time is in a month of 30 days; `None` if it is not known.
    pub months: Option<f64>,
    /// What a GB costs.
    pub prices: Prices,
}

/// What the bytes of clients of what changes cost; `None` if no bytes of it are known.
#[must_use]
pub fn cost(before: &Proxied, after: &Proxied, figures: &Figures, prices: Prices) -> Option<Cost> {
    let by_zone = compare(before, after, ZONE, &BTreeSet::new(), Some(figures));
    by_zone.totals.bytes?;
    let has_regions = has_regions(&before.state) || has_regions(&after.state);
    let by_region = has_regions.then(|| {
        // What is the same for regions may still change for zones.
        let asked = by_zone.services.iter().map(ServicePort::service).collect();
        compare(before, after, REGION, &asked, Some(figures))
    });
    let by_region = by_region.iter().flat_map(|report| &report.services);
    let money = of_ports(by_zone.services.iter(), by_region, &prices);
    Some(Cost { money, months: figures.over.as_deref().and_then(months), prices })
}

/// What the bytes of ports cost, given what leaves their zone and, if nodes are in several regions, their region.
pub(super) fn of_ports<'p, 'a: 'p>(
    by_zone: impl Iterator<Item = &'p ServicePort<'a>>,
    by_region: impl Iterator<Item = &'p ServicePort<'a>>,
    prices: &Prices,
) -> Both<f64> {
    let key = |port: &ServicePort<'_>| (port.service(), port.port.port, port.port.protocol);
    // Metrics do not say the address family: each port has its bytes once.
    let by_region: BTreeMap<_, Bytes> =
        by_region.filter_map(|port| Some((key(port), port.bytes?))).collect();
    by_zone.fold(Both::default(), |sum, port| {
        let Some(bytes) = port.bytes else { return sum };
        let Both { before, after } =
            money(&bytes, by_region.get(&key(port)), port.is_bound(), prices);
        Both { before: sum.before + before, after: sum.after + after }
    })
}

/// Whether Nodes are in different regions, so that bytes may cost what they cost between them.
pub(super) fn has_regions(state: &State) -> bool {
    let mut regions = state.nodes().filter_map(|(_, labels)| labels.get(REGION));
    let first = regions.next();
    regions.any(|other| Some(other) != first)
}

/// What bytes cost: those that left their zone and region; and those that will. What goes on as before costs what it
/// did. A Service with a policy costs at most what the policy lets leave the zone: what did so besides is of before it.
fn money(bytes: &Bytes, of_region: Option<&Bytes>, is_bound: bool, prices: &Prices) -> Both<f64> {
    let expected = bytes.crossing;
    let out_of_region = of_region.map(|it| it.crossing).unwrap_or_default();
    // Loads are sums of shares: what differs by less is what floating-point numbers lose.
    let least = bytes.moved * 1e-9;
    let is_same = |it: Both<f64>| (it.before - it.after).abs() <= least;
    let crossed = bytes.crossed.unwrap_or(expected.before);
    let measured = prices.of(crossed, of_region.and_then(|it| it.crossed).unwrap_or_default());
    let by_policy = prices.of(expected.before, out_of_region.before);
    let before = if is_bound { measured.min(by_policy) } else { measured };
    let after = match [expected, out_of_region, bytes.stopped].into_iter().all(is_same) {
        true => before,
        false => prices.of(expected.after, out_of_region.after),
    };
    Both { before, after }
}

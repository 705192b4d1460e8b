//! What TCP connections moved to each zone, for a matrix of all nodes' zones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topo_lb_common::backend::Locality;
use topo_lb_common::counters::sum;
use topo_lb_common::far_endpoints::Moved;
use topo_lb_common::totals::Totals;

use super::bounded::grown;
use super::families::Families;
use topo_lb_core::metrics::declared::{self, Metric};

/// A zone without a name. No label's value has parentheses.
const UNKNOWN: &str = "(unknown)";

/// All zones beyond [`MOST`].
const OTHERS: &str = "(others)";
/// Most zones with a series of their own.
const MOST: usize = 64;
/// How long an endpoint that is gone keeps its zone after the last byte to it: its connections may go on.
const QUIET: Duration = Duration::from_mins(5);

/// The zone of an endpoint; `None` is unknown.
type Zone = Option<Arc<str>>;

/// What was moved to endpoints by address; `None` is all of those without room in the map.
pub type FarEndpoints = BTreeMap<Option<IpAddr>, Moved>;

/// What was moved to other zones, since the agent started.
#[derive(Debug, Default)]
pub struct Zones {
    last: FarEndpoints,
    /// The zones of endpoints, kept for connections that outlive them.
    known: BTreeMap<IpAddr, Zone>,
    /// Since when nothing was moved to endpoints that are gone.
    quiet: BTreeMap<IpAddr, Instant>,
    sums: BTreeMap<Zone, Moved>,
}

impl Zones {
    /// Begins with what was moved before the agent started.
    #[must_use]
    pub fn since(before: FarEndpoints) -> Self {
        Self { last: before, ..Self::default() }
    }

    /// The endpoints in the map.
    pub fn endpoints(now: &FarEndpoints) -> BTreeSet<IpAddr> {
        now.keys().copied().flatten().collect()
    }

    /// Adds what was moved since the last look. `zones` has the current zone of each endpoint that the
    /// cluster has. Returns endpoints that it no longer has, and to which nothing was moved for minutes:
    /// their entries may be removed.
    pub fn look(
        &mut self,
        now: FarEndpoints,
        zones: BTreeMap<IpAddr, Zone>,
        time: Instant,
    ) -> Vec<IpAddr> {
        let is_gone = |address: &IpAddr| !zones.contains_key(address);
        let gone: BTreeSet<_> = now.keys().copied().flatten().filter(is_gone).collect();
        self.known.extend(zones);
        self.quiet.retain(|address, _| gone.contains(address));
        let mut over = Vec::new();
        for (address, moved) in &now {
            let grown = grown(moved, self.last.get(address));
            if grown != Moved::default() {
                let zone = address.and_then(|address| self.known.get(&address).cloned().flatten());
                let is_own = self.sums.len() < MOST || self.sums.contains_key(&zone);
                let zone = if is_own { zone } else { Some(OTHERS.into()) };
                let to = self.sums.entry(zone).or_default();
                *to = sum([&*to, &grown]);
                address.map(|address| self.quiet.remove(&address));
            }
            if let Some(address) = address.filter(|address| gone.contains(address))
                && time.duration_since(*self.quiet.entry(address).or_insert(time)) >= QUIET
            {
                over.push(address);
            }
        }
        self.last = now;
        for address in &over {
            self.last.remove(&Some(*address));
            self.quiet.remove(address);
        }
        self.known.retain(|address, _| self.last.contains_key(&Some(*address)));
        over
    }

    /// What was moved to each zone: to this node's own, by what endpoints there moved, and to others.
    #[must_use]
    pub fn matrix(&self, own: &str, by_locality: &BTreeMap<Locality, Totals>) -> Matrix {
        let near = |locality| by_locality.get(&locality).copied().unwrap_or_default();
        let near = [near(Locality::Node), near(Locality::Zone)];
        let near = near.map(|Totals { sent, received, .. }| Moved { sent, received });
        let mut to = BTreeMap::from([(own.into(), sum(&near))]);
        for (zone, moved) in &self.sums {
            let zone = zone.clone().unwrap_or_else(|| UNKNOWN.into());
            let known = to.entry(zone).or_default();
            *known = sum([&*known, moved]);
        }
        Matrix { from: own.into(), to }
    }
}

/// What clients of this node moved to each zone, since the agent started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matrix {
    /// This node's zone.
    from: Arc<str>,
    to: BTreeMap<Arc<str>, Moved>,
}

/// The name of a node's zone.
#[must_use]
pub fn named(zone: Option<&str>) -> &str {
    zone.unwrap_or(UNKNOWN)
}

pub(super) fn encode(matrix: &Matrix, families: &mut Families<'_, '_>) -> fmt::Result {
    type Value = fn(&Moved) -> u64;
    let moved: [(&Metric, Value); 2] = [
        (&declared::ZONE_SENT_BYTES, |moved| moved.sent),
        (&declared::ZONE_RECEIVED_BYTES, |moved| moved.received),
    ];
    for (metric, value) in moved {
        let mut family = families.begin(metric)?;
        for (zone, moved) in &matrix.to {
            family.sample(&[&*matrix.from, &**zone], value(moved))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "10.0.0.1";
    const B: &str = "10.0.0.2";

    fn at(address: &str) -> IpAddr {
        address.parse().unwrap()
    }

    fn now<const N: usize>(all: [(&str, u64); N]) -> FarEndpoints {
        let moved = |sent| Moved { sent, received: 10 * sent };
        all.map(|(address, sent)| (address.parse().ok(), moved(sent))).into()
    }

    fn zones<const N: usize>(all: [(&str, &str); N]) -> BTreeMap<IpAddr, Zone> {
        let named = |zone: &str| (!zone.is_empty()).then(|| zone.into());
        all.map(|(address, zone)| (at(address), named(zone))).into()
    }

    fn sent(zones: &Zones) -> Vec<(String, u64)> {
        let near = |sent| Totals { sent, ..Totals::default() };
        let near = BTreeMap::from([(Locality::Node, near(1)), (Locality::Zone, near(2))]);
        let to = zones.matrix("own", &near).to;
        to.into_iter().map(|(zone, moved)| (zone.to_string(), moved.sent)).collect()
    }

    #[test]
    fn bytes_go_to_the_zone_of_their_endpoint_and_what_nobody_knows_is_unknown() {
        let mut all = Zones::since(now([(A, 100)]));
        let over = all.look(
            now([(A, 105), (B, 7), ("others", 9)]),
            zones([(A, "b"), (B, "")]),
            Instant::now(),
        );
        assert_eq!(over, Vec::<IpAddr>::new());
        let wanted = [("(unknown)", 16), ("b", 5), ("own", 3)];
        assert_eq!(sent(&all), wanted.map(|(zone, sent)| (zone.to_owned(), sent)));
    }

    #[test]
    fn an_endpoint_that_is_gone_keeps_its_zone_until_nothing_moves_any_more() {
        let mut all = Zones::default();
        let start = Instant::now();
        all.look(now([(A, 5)]), zones([(A, "b")]), start);
        assert!(all.look(now([(A, 6)]), zones([]), start).is_empty());
        // Two scrapes close together, and a connection that goes on.
        assert!(all.look(now([(A, 6)]), zones([]), start + QUIET / 2).is_empty());
        assert!(all.look(now([(A, 7)]), zones([]), start + QUIET).is_empty());
        assert!(all.look(now([(A, 7)]), zones([]), start + QUIET * 3 / 2).is_empty());
        assert_eq!(all.look(now([(A, 7)]), zones([]), start + QUIET * 2), [at(A)]);
        // A new endpoint has its address, and an entry that begins at zero.
        assert!(all.look(now([(A, 2)]), zones([(A, "c")]), start + QUIET * 2).is_empty());
        let wanted = [("b", 7), ("c", 2), ("own", 3)];
        assert_eq!(sent(&all), wanted.map(|(zone, sent)| (zone.to_owned(), sent)));
    }

    #[test]
    fn zones_beyond_the_most_share_one_series() {
        let mut all = Zones::default();
        for zone in 0..1_000 {
            let moved = now([(A, 2 * zone + 1)]);
            all.look(moved, zones([(A, &format!("zone-{zone}"))]), Instant::now());
        }
        let sent = sent(&all);
        assert_eq!(sent.len(), MOST + 2, "{sent:?}");
        assert_eq!(sent[0], (OTHERS.to_owned(), 2 * (1_000 - MOST as u64)));
    }
}

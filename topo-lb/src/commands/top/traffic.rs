//! The rate of what nodes have counted between two moments.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Serialize;
use topo_lb_common::backend::Locality;
use topo_lb_core::metrics::Tier;

use super::moment::{ByLocality, Counter, Doubts, Moment, Totals};

/// Most connections per second that a node can have for one Service. A rate above it, or above
/// [`MOST_BYTES`], is an error of the node's counters.
pub(super) const MOST_CONNECTIONS: f64 = 1e8;
const MOST_BYTES: f64 = 1e13;

/// Events a second of one Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Rate {
    /// Connections by locality: node, zone, region, elsewhere.
    pub connections: ByLocality<f64>,
    /// Refused connections.
    pub refused: f64,
    /// Failed connections.
    pub failed: f64,
    /// Bytes by locality.
    pub bytes: ByLocality<f64>,
    /// Of all bytes, those that clients sent; the others they received.
    #[serde(skip)]
    pub sent: f64,
}

impl Rate {
    fn count(&mut self, counter: Counter, more: f64) {
        match counter {
            Counter::Connections(locality) => self.connections[locality as usize] += more,
            Counter::Refused => self.refused += more,
            Counter::Failed => self.failed += more,
            Counter::Sent(locality) => {
                self.bytes[locality as usize] += more;
                self.sent += more;
            }
            Counter::Received(locality) => self.bytes[locality as usize] += more,
            Counter::Ended => {}
        }
    }

    pub(crate) fn add(&mut self, other: &Self) {
        let pairs = [(&mut self.connections, &other.connections), (&mut self.bytes, &other.bytes)];
        for (sum, more) in pairs {
            sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
        }
        self.refused += other.refused;
        self.failed += other.failed;
        self.sent += other.sent;
    }

    /// The weighted sum of two rates.
    pub(crate) fn mixed(&self, own: f64, other: &Self, others: f64) -> Self {
        let one = |a: f64, b: f64| a * own + b * others;
        let each = |a: &ByLocality<f64>, b: &ByLocality<f64>| {
            std::array::from_fn(|place| one(a[place], b[place]))
        };
        Self {
            connections: each(&self.connections, &other.connections),
            refused: one(self.refused, other.refused),
            failed: one(self.failed, other.failed),
            bytes: each(&self.bytes, &other.bytes),
            sent: one(self.sent, other.sent),
        }
    }

    /// Whether a node can have done this.
    fn is_possible(&self) -> bool {
        let mut connections = self.connections.iter().chain([&self.refused, &self.failed]);
        connections.all(|it| (0.0..=MOST_CONNECTIONS).contains(it))
            && self.bytes.iter().copied().chain([self.sent]).all(are_possible)
    }

    /// All connections that got an endpoint.
    #[must_use]
    pub fn all(&self) -> f64 {
        self.connections.iter().sum()
    }

    /// Bytes that left the zone of their client.
    #[must_use]
    pub fn far_bytes(&self) -> f64 {
        out_of_zone(&self.bytes)
    }

    /// The share of connections that left the zone of their client; `None` without connections.
    #[must_use]
    pub fn far_share(&self) -> Option<f64> {
        let all = self.all();
        (all > 0.0).then(|| out_of_zone(&self.connections) / all)
    }
}

/// What TCP connections did in a second that were made while one tier was in force.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct TierRate {
    /// Connections that were established and have ended.
    pub ended: f64,
    /// Connections that were never established.
    pub failed: f64,
    /// Bytes in both directions.
    pub bytes: f64,
}

impl TierRate {
    fn of(&mut self, counter: Counter) -> Option<&mut f64> {
        match counter {
            Counter::Ended => Some(&mut self.ended),
            Counter::Failed => Some(&mut self.failed),
            Counter::Sent(_) | Counter::Received(_) => Some(&mut self.bytes),
            Counter::Connections(_) | Counter::Refused => None,
        }
    }

    fn add(&mut self, other: &Self) {
        self.ended += other.ended;
        self.failed += other.failed;
        self.bytes += other.bytes;
    }

    /// Whether a node can have done this.
    fn is_possible(&self) -> bool {
        let connections = [self.ended, self.failed];
        connections.iter().all(|it| (0.0..=MOST_CONNECTIONS).contains(it))
            && are_possible(self.bytes)
    }
}

/// Whether a node can have moved as many bytes a second.
pub(super) fn are_possible(bytes: f64) -> bool {
    (0.0..=MOST_BYTES).contains(&bytes)
}

fn out_of_zone(of: &ByLocality<f64>) -> f64 {
    of[Locality::Region as usize] + of[Locality::Elsewhere as usize]
}

/// The rates of each tier.
pub(super) type ByTier = BTreeMap<Tier, TierRate>;

/// The rate of one Service, of all nodes together and of each.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Row {
    /// `namespace/name`.
    pub service: Arc<str>,
    /// Of all nodes that could be asked both times.
    #[serde(flatten)]
    pub rate: Rate,
    /// Of each such node on which something has changed.
    pub nodes: BTreeMap<Arc<str>, Rate>,
    /// By the tier in force, of all these nodes, as far as they say which.
    pub tiers: ByTier,
}

impl Row {
    /// Several rows together; no Service has this name, as it has no namespace.
    pub(super) fn sum_of(rows: &[&Self]) -> Option<Self> {
        let mut all = Self { service: "all".into(), ..Self::default() };
        rows.iter().for_each(|row| all.rate.add(&row.rate));
        (rows.len() > 1).then_some(all)
    }

    /// Whether topo-lb left all its connections to another proxy; clients may have dialled endpoints directly, too.
    pub(crate) fn is_left(&self) -> bool {
        let through = self.tiers.keys().filter(|tier| **tier != Tier::Direct);
        through.eq([&Tier::Left])
    }
}

/// The rates between two moments of every Service that has ever counted anything, by name. Only
/// nodes that answered at both count. What no node can have done is left out, and its node has a
/// sentence.
pub(crate) fn rates(before: &Moment, after: &Moment) -> (Vec<Row>, Doubts) {
    let (mut rows, mut doubts) = (BTreeMap::<Arc<str>, Row>::new(), Doubts::new());
    for (node, now) in &after.nodes {
        let (Ok(now), Some(Ok(then))) = (now, before.nodes.get(node)) else { continue };
        let seconds = after.seconds_since(before, node);
        for (service, now) in now {
            let (rate, tiers) = rate(then.get(service), now, seconds);
            let row = rows.entry(Arc::clone(service)).or_default();
            row.service = Arc::clone(service);
            if !rate.is_possible() || !tiers.values().all(TierRate::is_possible) {
                let doubt = format!("its counts of {service} are impossible and left out");
                doubts.insert(Arc::clone(node), doubt);
                continue;
            }
            row.rate.add(&rate);
            for (tier, rate) in tiers {
                row.tiers.entry(tier).or_default().add(&rate);
            }
            if rate != Rate::default() {
                row.nodes.insert(Arc::clone(node), rate);
            }
        }
    }
    (rows.into_values().collect(), doubts)
}

/// How much a counter has grown. As Prometheus does: one that went back has begun again at zero.
pub(super) fn grown(then: f64, now: f64) -> f64 {
    if now < then { now } else { now - then }
}

fn rate(then: Option<&Totals>, now: &Totals, seconds: f64) -> (Rate, ByTier) {
    let (mut rate, mut tiers) = (Rate::default(), ByTier::new());
    for (series, now) in now {
        let then = then.and_then(|then| then.get(series)).copied().unwrap_or_default();
        let grown = grown(then, *now) / seconds;
        rate.count(series.counter, grown);
        // Tiers in which nothing happens have no entry.
        if let Some(tier) = series.tier.filter(|_| grown != 0.0)
            && let Some(sum) = tiers.entry(tier).or_default().of(series.counter)
        {
            *sum += grown;
        }
    }
    (rate, tiers)
}

#[cfg(test)]
impl Row {
    /// Two Services: one with traffic of each kind, and one that a terminal must not obey.
    pub(super) fn examples() -> Vec<Self> {
        let rate = Rate {
            connections: [120.0, 3.25, 0.0, 40.0],
            refused: 2.0,
            bytes: [0.0, 0.0, 0.0, 1_234_567.0],
            ..Rate::default()
        };
        let nodes = BTreeMap::from([("worker-1".into(), rate.clone())]);
        let of_tier = |ended, failed, bytes| TierRate { ended, failed, bytes };
        let tiers = [
            (Tier::Key(0), of_tier(118.0, 0.0, 2e6)),
            (Tier::Key(12), of_tier(0.0, 1.5, 0.0)),
            (Tier::None, of_tier(3.0, 0.0, 7.0)),
            (Tier::Left, of_tier(2.0, 0.0, 3e3)),
            (Tier::Direct, of_tier(1.0, 0.0, 0.0)),
        ];
        let tiers = tiers.into();
        vec![
            Self { service: "default/web".into(), rate, nodes, tiers },
            Self { service: "default/idle\u{1b}[2J".into(), ..Self::default() },
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::moment::{Series, Traffic};
    use super::*;

    fn moment(at: Instant, nodes: &[(&str, Result<f64, &str>)]) -> Moment {
        let traffic = |count: f64| {
            let totals = [
                (Counter::Connections(Locality::Node), count),
                (Counter::Connections(Locality::Elsewhere), count / 2.0),
                (Counter::Refused, count),
            ];
            let totals = totals.map(|(counter, total)| (Series::new(counter, "http"), total));
            Traffic::from([("default/web".into(), totals.into())])
        };
        let nodes = nodes
            .iter()
            .map(|(name, counted)| ((*name).into(), counted.map(traffic).map_err(str::to_owned)));
        Moment { nodes: nodes.collect(), ..Moment::at(at) }
    }

    #[test]
    fn nodes_are_summed_and_each_is_kept() {
        let begin = Instant::now();
        let before = moment(begin, &[("a", Ok(10.0)), ("b", Ok(0.0)), ("c", Ok(7.0))]);
        let end = begin + Duration::from_secs(2);
        let after = moment(end, &[("a", Ok(14.0)), ("b", Ok(8.0)), ("c", Ok(7.0))]);
        let (rows, _) = rates(&before, &after);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].rate.connections, [6.0, 0.0, 0.0, 3.0]);
        assert_eq!(rows[0].rate.refused, 6.0);
        assert_eq!(rows[0].rate.far_share(), Some(1.0 / 3.0));
        let nodes: Vec<_> = rows[0].nodes.keys().map(AsRef::as_ref).collect();
        assert_eq!(nodes, ["a", "b"], "nothing has changed on c");
    }

    #[test]
    fn each_node_s_rate_is_over_its_own_time() {
        let begin = Instant::now();
        let both = |at, count| moment(at, &[("steady", Ok(count)), ("slow", Ok(count))]);
        let mut before = both(begin, 0.0);
        // The steady one answers at 0 s and 2 s, the other at 5 s and 6 s.
        let second = Duration::from_secs(1);
        before.when.insert("slow".into(), begin + 5 * second);
        let mut after = both(begin + 2 * second, 10.0);
        after.when.insert("slow".into(), begin + 6 * second);
        let (rows, _) = rates(&before, &after);
        let refused = rows[0].nodes.values().map(|rate| rate.refused);
        assert_eq!(refused.collect::<Vec<_>>(), [10.0, 5.0], "slow, steady");
        assert_eq!(rows[0].rate.refused, 15.0);
    }

    #[test]
    fn a_counter_that_begins_again_counts_from_zero() {
        let begin = Instant::now();
        let after = moment(begin + Duration::from_secs(1), &[("a", Ok(4.0))]);
        let (rows, _) = rates(&moment(begin, &[("a", Ok(100.0))]), &after);
        assert_eq!(rows[0].rate.refused, 4.0);
    }

    #[test]
    fn a_node_that_did_not_answer_once_does_not_count() {
        let begin = Instant::now();
        let silent = moment(begin, &[("a", Err("away"))]);
        let after = moment(begin + Duration::from_secs(1), &[("a", Ok(100.0)), ("b", Ok(5.0))]);
        assert_eq!(rates(&silent, &after).0, []);
        assert_eq!(rates(&after, &silent).0, []);
    }

    #[test]
    fn what_no_node_can_have_done_is_left_out_and_said() {
        let begin = Instant::now();
        let names = ["good", "huge", "below", "nan", "endless"];
        let counts = [10.0, 1e300, -5.0, f64::NAN, f64::INFINITY];
        let before = moment(begin, &names.map(|name| (name, Ok(0.0))));
        let after = names.into_iter().zip(counts.map(Ok)).collect::<Vec<_>>();
        let (rows, doubts) = rates(&before, &moment(begin + Duration::from_secs(1), &after));
        assert_eq!(rows[0].rate.connections, [10.0, 0.0, 0.0, 5.0]);
        assert_eq!(rows[0].nodes.keys().map(AsRef::as_ref).collect::<Vec<_>>(), ["good"]);
        assert_eq!(doubts.len(), 4, "{doubts:?}");
        assert_eq!(doubts["huge"], "its counts of default/web are impossible and left out");
    }

    #[test]
    fn a_service_is_left_if_nothing_else_becomes_of_its_connections() {
        let is_left = |tiers: &[Tier]| {
            let tiers = tiers.iter().map(|tier| (*tier, TierRate::default())).collect();
            Row { tiers, ..Row::default() }.is_left()
        };
        assert!(is_left(&[Tier::Left]) && is_left(&[Tier::Left, Tier::Direct]));
        for other in [Tier::None, Tier::Key(0)] {
            assert!(!is_left(&[Tier::Left, other]));
        }
        assert!(!is_left(&[]) && !is_left(&[Tier::Direct]));
    }

    #[test]
    fn a_service_without_connections_has_no_share() {
        assert_eq!(Rate::default().far_share(), None);
    }
}

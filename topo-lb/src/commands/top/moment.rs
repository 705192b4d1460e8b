//! What nodes had counted at one moment.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use topo_lb_common::backend::Locality;
use topo_lb_common::totals::RTT_PLACES;
use topo_lb_core::metrics::Tier;
use topo_lb_core::topology::Scope;

/// One number for each [`Locality`], in its order.
pub(crate) type ByLocality<T> = [T; Locality::ALL.len()];

/// What a counter of a Service counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Counter {
    /// Connections.
    Connections(Locality),
    /// Refused connections.
    Refused,
    /// Connections that failed after they got an endpoint.
    Failed,
    /// TCP connections that were established and have ended.
    Ended,
    /// Bytes that clients of this node sent by TCP; none where nobody counts them.
    Sent(Locality),
    /// Bytes that they received, likewise.
    Received(Locality),
}

/// One counter of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Series {
    pub(super) counter: Counter,
    /// `None`: it counts for all tiers, or of a tier that is unknown.
    pub(super) tier: Option<Tier>,
    /// A hash of what tells it from others that count the same, such as its port: a thousand nodes may
    /// have millions of series.
    labels: u64,
}

impl Series {
    pub(crate) fn new(counter: Counter, labels: impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        labels.hash(&mut hasher);
        Self { counter, tier: None, labels: hasher.finish() }
    }

    pub(super) fn of_tier(self, tier: Option<Tier>) -> Self {
        Self { tier, ..self }
    }
}

/// What one Service has counted. Series are not summed before their growth is known: one that ends would
/// make the sum go back, as if all had begun again.
pub(crate) type Totals = BTreeMap<Series, f64>;

/// Totals by `namespace/name` of the Service.
pub(crate) type Traffic = BTreeMap<Arc<str>, Totals>;

/// Ended connections by their last round trip: as many in each place as
/// [`Totals::rtt`](topo_lb_common::totals::Totals::rtt) has there.
pub(crate) type RoundTrips = ByLocality<[f64; RTT_PLACES]>;

/// Bytes that the clients of one node moved by TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Moved {
    /// What they sent.
    pub sent: f64,
    /// What they received.
    pub received: f64,
}

/// Bytes that went to no Service, by what they went to.
pub(crate) type Others = BTreeMap<Arc<str>, Moved>;

/// Bytes that the clients of one node sent and received by TCP, not by Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Zones {
    /// The node's own zone.
    pub own: Arc<str>,
    /// Those of Services, by the zone of the endpoint; empty if the agent does not measure by zone.
    pub to: BTreeMap<Arc<str>, Moved>,
    /// Those that went to no Service, by the metrics' label `to`; `None` if the agent does not count all.
    pub others: Option<Others>,
}

/// What one agent evacuates: a label, its value, and the end, as metrics say them; and the number of Services with
/// endpoints there.
pub(crate) type ByAgent = BTreeMap<[Arc<str>; 3], usize>;

/// Sentences by node.
pub(super) type Doubts = BTreeMap<Arc<str>, String>;

/// What all nodes had counted at one moment, or why a node could not be asked.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    /// When the first node was asked.
    pub at: Instant,
    /// When nodes answered; without an entry: at once.
    pub when: BTreeMap<Arc<str>, Instant>,
    /// By the node's name or its agent's address.
    pub nodes: BTreeMap<Arc<str>, Result<Traffic, String>>,
    /// Round trips of the nodes that could be asked.
    pub round_trips: BTreeMap<Arc<str>, RoundTrips>,
    /// Bytes not by Service, of the nodes that measure such.
    pub zones: BTreeMap<Arc<str>, Zones>,
    /// What is evacuated, of the nodes that say so.
    pub evacuations: BTreeMap<Arc<str>, ByAgent>,
    /// What is wrong with nodes even if they could be asked.
    pub doubts: Doubts,
    /// How many agents only observe.
    pub observing: usize,
    /// Which Services the agents handle, as far as their Pods say.
    pub scope: Option<Scope>,
    /// Services without a policy, which an agent leaves alone and does not count.
    pub unhandled: usize,
    /// Nodes that there are; `None` if nobody says it.
    pub all_nodes: Option<usize>,
}

impl Moment {
    /// A moment of which nothing is known yet.
    pub(crate) fn at(at: Instant) -> Self {
        let (nodes, round_trips, zones) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (when, evacuations, doubts) = (BTreeMap::new(), BTreeMap::new(), Doubts::new());
        let (observing, scope, unhandled, all_nodes) = (0, None, 0, None);
        Self {
            at,
            when,
            nodes,
            round_trips,
            zones,
            evacuations,
            doubts,
            observing,
            scope,
            unhandled,
            all_nodes,
        }
    }

    /// How many nodes count all connections, also those that topo-lb leaves alone.
    pub(crate) fn counting_all(&self) -> usize {
        self.zones.values().filter(|zones| zones.others.is_some()).count()
    }

    /// Which Services have no counts, if some have none.
    pub(super) fn uncounted(&self) -> Option<String> {
        let who = match self.unhandled {
            0 => return None,
            1 => "1 Service is".to_owned(),
            some => format!("{some} Services are"),
        };
        Some(format!("{who} not counted: no policy (the agents' scope is opt-in)"))
    }

    /// What to know of the counts if agents only observe.
    pub(crate) fn caveat(&self) -> Option<String> {
        let who = match (self.observing, self.nodes.len()) {
            (0, _) => return None,
            (1, 1) => "the agent only observes".to_owned(),
            (some, all) => format!("{some} of {all} agents only observe"),
        };
        Some(format!("{who}: connections and refusals are those that would be"))
    }

    /// The seconds between a node's answer at an earlier moment and the one now.
    pub(super) fn seconds_since(&self, before: &Self, node: &str) -> f64 {
        let when = |moment: &Self| moment.when.get(node).copied().unwrap_or(moment.at);
        let since = when(self).saturating_duration_since(when(before));
        since.max(Duration::from_millis(1)).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_without_a_policy_are_said_to_be_uncounted() {
        let said = |unhandled| {
            let moment = Moment { unhandled, ..Moment::at(Instant::now()) };
            moment.uncounted()
        };
        assert_eq!(said(0), None);
        let one = "1 Service is not counted: no policy (the agents' scope is opt-in)";
        assert_eq!(said(1).as_deref(), Some(one));
        assert!(said(12).is_some_and(|it| it.starts_with("12 Services are not counted")));
    }
}

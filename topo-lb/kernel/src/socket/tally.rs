//! Counts connections to a wider tier, of Services that ask for their return and of others, on the thread of the
//! terminator.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use tracing::debug;

use super::homeward::Returning;
use super::namespace::NetnsSwitcher;
use super::search::{Maps, Places, REST, Search, cpu_time};
use topo_lb_core::homecoming::Way;

/// What is counted, and when again.
pub(super) struct Tally {
    figures: Arc<Returning>,
    search: Search,
    /// No search before.
    rests_until: Instant,
}

impl Tally {
    pub(super) fn new(figures: Arc<Returning>) -> Self {
        Self { figures, search: Search::default(), rests_until: Instant::now() }
    }

    /// Counts the connections that these ways do not lead to any more. Does nothing if the last count was costly and
    /// not long ago.
    pub(super) fn count(
        &mut self,
        ways: Vec<Arc<Way>>,
        places: Places<'_>,
        switcher: &NetnsSwitcher,
    ) {
        if Instant::now() < self.rests_until {
            return;
        }
        let began = cpu_time();
        let totals = self.totals(&ways, places, switcher);
        *self.figures.wider.lock().unwrap_or_else(PoisonError::into_inner) = by_port(&ways, totals);
        let took = cpu_time().saturating_sub(began);
        debug!(?took, ways = ways.len(), "counted connections to a wider tier");
        self.rests_until = Instant::now() + took * REST;
    }

    /// By the place of the way; `None`: nobody knows.
    fn totals(
        &mut self,
        ways: &[Arc<Way>],
        places: Places<'_>,
        switcher: &NetnsSwitcher,
    ) -> Vec<Option<u64>> {
        self.search.set(ways.to_vec());
        if ways.is_empty() {
            return Vec::new();
        }
        let opened = places.processes().and_then(|it| Ok((it, Maps::open(places.pin_dir)?)));
        // Who may not look knows nothing of a Service for which nothing is wider just now, either.
        let Some((found, maps)) = opened.ok().filter(|(found, _)| found.unseen() == 0) else {
            return vec![None; ways.len()];
        };
        let mut totals: Vec<_> = ways.iter().map(|way| way.wide.is_empty().then_some(0)).collect();
        if self.search.is_idle() {
            return totals;
        }
        let mut counts = vec![0; ways.len()];
        let unseen = self.search.run(&found, &maps, switcher, |at, _, _| counts[at] += 1);
        if unseen.error.is_none() {
            for ((total, count), is_doubtful) in totals.iter_mut().zip(counts).zip(unseen.doubtful)
            {
                *total = (!is_doubtful).then_some(count);
            }
        }
        totals
    }
}

/// The sums of the families and frontends of each Service port; without those of which a part is not known.
fn by_port(ways: &[Arc<Way>], totals: Vec<Option<u64>>) -> BTreeMap<Arc<str>, u64> {
    let mut sums = BTreeMap::<_, Option<u64>>::new();
    for (way, total) in ways.iter().zip(totals) {
        let sum = sums.entry(Arc::clone(&way.name)).or_insert(Some(0));
        *sum = sum.zip(total).map(|(sum, more)| sum + more);
    }
    sums.into_iter().filter_map(|(name, sum)| Some((name, sum?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_port_is_the_sum_of_its_families_and_never_a_part_of_it() {
        let way = |name: &str| {
            Arc::new(Way {
                name: name.into(),
                after: std::time::Duration::ZERO,
                rank: Some(0),
                frontends: Box::default(),
                row: Arc::default(),
                wide: Arc::default(),
            })
        };
        let ways = ["a/both:80", "a/none:80", "a/half:80", "a/both:80", "a/half:80"].map(way);
        let sums = by_port(&ways, vec![Some(3), Some(0), Some(2), Some(4), None]);
        let wanted = [("a/both:80".into(), 7), ("a/none:80".into(), 0)];
        assert_eq!(sums, BTreeMap::from(wanted));
    }
}

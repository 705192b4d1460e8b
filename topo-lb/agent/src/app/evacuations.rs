//! Says in the log what is evacuated on this node, and when it is not any more.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tracing::info;

use topo_lb_core::rate::Rate;
use topo_lb_core::topology::evacuated::Evacuated;

/// Log limit: a burst, then one line per interval. Who may annotate Services can write thousands.
const LOGGED: (u32, Duration) = (10, Duration::from_secs(10));

/// What was evacuated, as told. What the limit forbids is told with a later change, if it is still so.
#[derive(Debug)]
pub(super) struct EvacuationLog {
    told: BTreeSet<Evacuated>,
    rate: Rate,
}

impl EvacuationLog {
    /// Nothing is evacuated yet.
    pub(super) fn new(now: Instant) -> Self {
        let (burst, interval) = LOGGED;
        Self { told: BTreeSet::new(), rate: Rate::new(burst, interval, now) }
    }

    /// Logs what differs from what was told. `all`: what holds, and of how many Services endpoints are there.
    pub(super) fn tell(&mut self, all: &BTreeMap<Evacuated, usize>) {
        for sentence in self.news(all, Instant::now()) {
            info!("{sentence}");
        }
    }

    fn news(&mut self, all: &BTreeMap<Evacuated, usize>, now: Instant) -> Vec<String> {
        let mut sentences = Vec::new();
        let mut begun: Vec<_> = all.iter().filter(|(one, _)| !self.told.contains(one)).collect();
        // An operator's word for the whole cluster before that of a Service.
        begun.sort_by_key(|(_, services)| Reverse(**services));
        for (one, _) in begun {
            if !self.rate.take(now) {
                break;
            }
            let Evacuated { key, value, .. } = one;
            let end = match one.end() {
                end if end.is_empty() => String::new(),
                end => format!(" until {end}"),
            };
            sentences.push(format!(
                "{key}={value} is evacuated{end}: new connections avoid the endpoints there, but for Services that have no \
                 others"
            ));
            self.told.insert(one.clone());
        }
        let over: Vec<_> = self.told.iter().filter(|one| !all.contains_key(one)).cloned().collect();
        for one in over {
            let is_same = |other: &&Evacuated| (&other.key, &other.value) == (&one.key, &one.value);
            // Another word still says it, maybe with another end.
            let is_on = all.keys().any(|other| is_same(&other));
            if !is_on && !self.rate.take(now) {
                break;
            }
            self.told.remove(&one);
            if !is_on && !self.told.iter().any(|other| is_same(&other)) {
                sentences.push(format!("{}={} is evacuated no more", one.key, one.value));
            }
        }
        sentences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REST: &str =
        ": new connections avoid the endpoints there, but for Services that have no others";

    fn zone(value: &str, until: Option<i64>) -> Evacuated {
        Evacuated { until, key: "zone".to_owned(), value: value.to_owned() }
    }

    #[test]
    fn what_begins_and_what_ends_is_told_once() {
        let now = Instant::now();
        let mut log = EvacuationLog::new(now);
        let first = [(zone("a", None), 1), (zone("b", Some(1_000)), 3)].into();
        assert_eq!(
            log.news(&first, now),
            [
                format!("zone=b is evacuated until 1970-01-01T00:16:40Z{REST}"),
                format!("zone=a is evacuated{REST}"),
            ]
        );
        // Another object says the same with an end.
        let second = [(zone("a", Some(2_000)), 3), (zone("a", None), 1)].into();
        assert_eq!(
            log.news(&second, now),
            [
                format!("zone=a is evacuated until 1970-01-01T00:33:20Z{REST}"),
                "zone=b is evacuated no more".to_owned(),
            ]
        );
        assert!(log.news(&second, now).is_empty());
        let third = [(zone("a", None), 1)].into();
        assert!(log.news(&third, now).is_empty());
        assert_eq!(log.news(&BTreeMap::new(), now), ["zone=a is evacuated no more"]);
    }

    #[test]
    fn who_writes_thousands_neither_fills_the_log_nor_hides_what_concerns_most() {
        let now = Instant::now();
        let mut log = EvacuationLog::new(now);
        let mut many: BTreeMap<_, _> =
            (0..1_000).map(|number| (zone(&number.to_string(), None), 1)).collect();
        many.insert(zone("z", Some(1_000)), 500);
        let told = log.news(&many, now);
        assert!(told.len() == 10 && told[0].starts_with("zone=z is evacuated until"), "{told:?}");
        // What was not told is told later.
        assert_eq!(log.news(&many, now + LOGGED.1).len(), 1);
        let told = log.news(&BTreeMap::new(), now + 60 * LOGGED.1);
        assert!(told.len() == 10 && told.iter().all(|it| it.ends_with("no more")), "{told:?}");
    }
}

//! Says in the log what is evacuated on this node, and when it is not any more.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tracing::info;

use topo_lb_core::rate::Rate;
use topo_lb_core::topology::evacuated::Evacuated;

/// Log limit: a burst, then one line per interval. Who may annotate Services can write thousands.
const LOGGED: (u32, Duration) = (10, Duration::from_secs(10));

/// What was evacuated, as labels and values.
#[derive(Debug)]
pub(super) struct EvacuationLog {
    known: BTreeSet<(String, String)>,
    rate: Rate,
}

impl EvacuationLog {
    /// Nothing is evacuated yet.
    pub(super) fn new(now: Instant) -> Self {
        let (burst, interval) = LOGGED;
        Self { known: BTreeSet::new(), rate: Rate::new(burst, interval, now) }
    }

    /// Logs what differs from the last call. `now`: what holds, and of how many Services endpoints are there.
    pub(super) fn tell(&mut self, now: &BTreeMap<Evacuated, usize>) {
        for sentence in self.news(now, Instant::now()) {
            info!("{sentence}");
        }
    }

    fn news(&mut self, all: &BTreeMap<Evacuated, usize>, now: Instant) -> Vec<String> {
        let mut sentences = Vec::new();
        let mut are = BTreeSet::new();
        // Of several ends of one label, the last one counts; none comes first.
        for (one, services) in all {
            let label = (one.key.clone(), one.value.clone());
            if are.insert(label.clone()) && !self.known.contains(&label) {
                let end = match one.end() {
                    end if end.is_empty() => String::new(),
                    end => format!(" until {end}"),
                };
                let services = match services {
                    1 => "1 Service".to_owned(),
                    many => format!("{many} Services"),
                };
                sentences.push(format!(
                    "{}={} is evacuated{end}: its endpoints, of {services}, get no new connections of this node",
                    one.key, one.value
                ));
            }
        }
        for (key, value) in self.known.difference(&are) {
            sentences.push(format!("{key}={value} is evacuated no more"));
        }
        self.known = are;
        sentences.retain(|_| self.rate.take(now));
        sentences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(value: &str, until: Option<i64>) -> Evacuated {
        Evacuated { until, key: "zone".to_owned(), value: value.to_owned() }
    }

    #[test]
    fn what_begins_and_what_ends_is_told_once() {
        let now = Instant::now();
        let mut log = EvacuationLog::new(now);
        let first = [(zone("a", None), 3), (zone("b", Some(1_000)), 1)].into();
        let told = log.news(&first, now);
        assert_eq!(
            told,
            [
                "zone=a is evacuated: its endpoints, of 3 Services, get no new connections of this node",
                "zone=b is evacuated until 1970-01-01T00:16:40Z: its endpoints, of 1 Service, get no new connections of this node",
            ]
        );
        // It has another end, and another object says the same.
        let second = [(zone("a", Some(2_000)), 3), (zone("a", None), 3)].into();
        assert_eq!(log.news(&second, now), ["zone=b is evacuated no more"]);
        assert!(log.news(&second, now).is_empty());
    }

    #[test]
    fn who_writes_thousands_does_not_fill_the_log() {
        let now = Instant::now();
        let mut log = EvacuationLog::new(now);
        let many = (0..1_000).map(|number| (zone(&number.to_string(), None), 1)).collect();
        assert_eq!(log.news(&many, now).len(), 10);
        assert_eq!(log.news(&BTreeMap::new(), now + LOGGED.1).len(), 1);
    }
}

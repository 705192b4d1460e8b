//! Logs which annotations and fields of Services are ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tracing::warn;

use crate::cluster::{ServiceId, State};
use crate::rate::Rate;
use crate::topology;

/// Log limit: a burst, then one report per interval, however often a Service changes.
const LOGGED: (u32, Duration) = (5, Duration::from_secs(30));
/// Most Services that one report names.
const NAMED: usize = 16;

/// What was logged. Pure except for the log: callers pass the time.
#[derive(Debug)]
pub struct IgnoredLog {
    /// What is ignored now, by Service.
    known: BTreeMap<ServiceId, String>,
    /// Services of `known` that were not logged yet.
    unlogged: BTreeSet<ServiceId>,
    rate: Rate,
}

impl IgnoredLog {
    /// Nothing logged yet.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        let (burst, interval) = LOGGED;
        let (known, unlogged) = Default::default();
        Self { known, unlogged, rate: Rate::new(burst, interval, now) }
    }

    /// Logs the news of changed Services. Returns the number of lines.
    pub fn look<'a>(
        &mut self,
        state: &State,
        changed: impl Iterator<Item = &'a ServiceId>,
        now: Instant,
    ) -> usize {
        let news = self.news(state, changed, now);
        news.iter().for_each(|sentence| warn!("{sentence}"));
        news.len()
    }

    fn news<'a>(
        &mut self,
        state: &State,
        changed: impl Iterator<Item = &'a ServiceId>,
        now: Instant,
    ) -> Vec<String> {
        for id in changed {
            match topology::ignored(state, id) {
                None => {
                    self.known.remove(id);
                    self.unlogged.remove(id);
                }
                Some(rules) if self.known.get(id) == Some(&rules) => {}
                Some(rules) => {
                    self.known.insert(id.clone(), rules);
                    self.unlogged.insert(id.clone());
                }
            }
        }
        // Over the limit, the news waits for a later change.
        if self.unlogged.is_empty() || !self.rate.take(now) {
            return Vec::new();
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        // The first of each namespace, then the second of each: none keeps the others from being named.
        let of_each = unlogged.iter().collect::<Vec<_>>();
        let of_each = of_each.chunk_by(|one, next| one.namespace == next.namespace);
        let mut turns: Vec<_> = of_each.flat_map(|own| own.iter().copied().enumerate()).collect();
        turns.sort_unstable();
        let named = turns.into_iter().take(NAMED);
        let mut all: Vec<_> =
            named.map(|(_, id)| format!("Service {id}: {}", self.known[id])).collect();
        if let Some(more @ 1..) = unlogged.len().checked_sub(NAMED) {
            all.push(format!(
                "{more} more Services have annotations or fields that are ignored: `topo-lb lint` \
                 names them all"
            ));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::cluster::{Change, Service, Update};

    fn service(name: &str, handle: Option<&str>) -> Service {
        let mut service = Service {
            id: ServiceId { namespace: "shop".into(), name: name.into() },
            cluster_ips: vec![[10, 96, 0, 1].into()],
            ..Service::default()
        };
        Arc::make_mut(&mut service.policy).handle = handle.map(Into::into);
        service
    }

    struct Log {
        state: State,
        printed: IgnoredLog,
        start: Instant,
    }

    impl Log {
        fn new() -> Self {
            let start = Instant::now();
            Self { state: State::default(), printed: IgnoredLog::new(start), start }
        }

        /// The lines for these Services, `after` milliseconds from the start.
        fn says(&mut self, services: &[Service], after: u64) -> Vec<String> {
            for service in services {
                let _ = self.state.apply(Update::Service(Change::Applied(service.clone())), "n");
            }
            let changed = services.iter().map(|service| &service.id);
            self.printed.news(&self.state, changed, self.start + Duration::from_millis(after))
        }
    }

    #[test]
    fn a_value_that_is_ignored_is_said_once_and_again_when_it_is_another() {
        let mut log = Log::new();
        assert_eq!(log.says(&[service("web", Some("false"))], 0), [""; 0]);
        assert_eq!(
            log.says(&[service("web", Some("False"))], 0),
            [
                "Service shop/web: annotation topo-lb.io/handle is ignored: `False` is neither `true` \
              nor `false`; write `false` to have topo-lb leave the Service alone"
            ]
        );
        assert_eq!(log.says(&[service("web", Some("False"))], 0), [""; 0]);
        assert_eq!(log.says(&[service("web", Some("no"))], 0).len(), 1);
        assert_eq!(log.says(&[service("web", None)], 0), [""; 0]);
        assert_eq!(log.says(&[service("web", Some("no"))], 0).len(), 1);
    }

    #[test]
    fn a_service_that_flips_for_an_hour_does_not_fill_the_log() {
        let (mut log, mut lines) = (Log::new(), 0);
        for flip in 0..36_000_u64 {
            let value = if flip % 2 == 0 { "yes" } else { "true" };
            lines += log.says(&[service("web", Some(value))], 100 * flip).len();
        }
        assert!((60..=130).contains(&lines), "{lines} lines in an hour");
        // News from meanwhile comes with the next report.
        assert_eq!(log.says(&[service("other", Some("x"))], 7_200_000).len(), 1);
    }

    #[test]
    fn a_namespace_with_very_many_keeps_no_other_out_of_the_log() {
        let mut log = Log::new();
        let of = |namespace: &str, at: usize| Service {
            id: ServiceId { namespace: namespace.into(), name: format!("s{at}").into() },
            ..service("", Some("x"))
        };
        let mut all: Vec<_> = (0..1_000).map(|at| of("evil", at)).collect();
        all.extend([of("victim", 1), of("victim", 2)]);
        let lines = log.says(&all, 0);
        let of_victim = lines.iter().filter(|line| line.starts_with("Service victim/")).count();
        assert_eq!((lines.len(), of_victim), (NAMED + 1, 2), "{lines:?}");
    }

    #[test]
    fn a_thousand_at_once_are_a_few_lines() {
        let mut log = Log::new();
        let all: Vec<_> = (0..1_000).map(|at| service(&format!("s{at}"), Some("x"))).collect();
        let lines = log.says(&all, 0);
        assert_eq!(lines.len(), NAMED + 1);
        assert!(lines[NAMED].starts_with("984 more Services"), "{}", lines[NAMED]);
    }
}

//! What the watches of all kinds are together: complete, fresh, or failing.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use tokio::time::{Instant, sleep_until};

use super::watch_health::{Health, WatchHealth};
use crate::source::Event;
use crate::source::object::Kind;
use topo_lb_core::cluster::Freshness;

/// A trouble that stays away for this time is over. Much longer than the longest pause.
const TROUBLE_OVER: Duration = Duration::from_secs(180);

/// Factor of `settling` after the first complete listing.
const FAMILIAR: u32 = 3;

/// A failure of the server.
pub(super) struct Failing {
    pub(super) trouble: String,
    /// The HTTP status, if the server can serve no request now, whatever its message.
    pub(super) overload: Option<u16>,
    /// Since when, if it may be temporary.
    pub(super) passing_since: Option<Instant>,
}

impl Failing {
    /// A failure that is not temporary, and has nothing to do with other requests.
    pub(super) const fn lasting(trouble: String) -> Self {
        Self { trouble, overload: None, passing_since: None }
    }
}

/// The freshness of all watches, when it changes.
pub(super) fn freshness(
    watch_health: WatchHealth,
    all: WatchAggregator,
) -> impl Stream<Item = Event> + Send {
    let changes = health_changes(watch_health);
    changes.filter_map(move |health| std::future::ready(all.lock().freshness_after(health)))
}

/// The health of the watches, each time it may have changed.
fn health_changes(watch_health: WatchHealth) -> impl Stream<Item = Health> + Send {
    stream::unfold((watch_health, None::<Instant>), async |(watch_health, until)| {
        match until {
            Some(until) => tokio::select! {
                () = watch_health.moved() => {}
                () = sleep_until(until) => {}
            },
            None => watch_health.moved().await,
        }
        let health = watch_health.health(Instant::now());
        let until = match health {
            Health::Unclear(until) => until,
            Health::Is(_) => None,
        };
        Some((health, (watch_health, until)))
    })
}

/// The combined state of the watches, which share it.
#[derive(Clone)]
pub(super) struct WatchAggregator(Arc<Mutex<State>>);

struct State {
    listed: BTreeSet<Kind>,
    /// What was sent last; none before the first complete listing.
    freshness: Option<Freshness>,
    /// How long a temporary failure lasts before it is reported.
    settling: Duration,
    /// Reported troubles that are not over, with their last occurrence.
    troubles: HashMap<String, Instant>,
}

/// Watches that end together do so within moments, which count as one.
fn is_news(before: Freshness, now: Freshness) -> bool {
    match (before, now) {
        (Freshness::AsOf(before), Freshness::AsOf(now)) => {
            let distance = now.duration_since(before).unwrap_or_else(|error| error.duration());
            distance >= Duration::from_secs(1)
        }
        _ => before != now,
    }
}

impl WatchAggregator {
    /// With how long a temporary failure lasts before it is reported.
    pub(super) fn new(settling: Duration) -> Self {
        let (listed, troubles) = (BTreeSet::new(), HashMap::new());
        Self(Arc::new(Mutex::new(State { listed, freshness: None, settling, troubles })))
    }

    /// All objects of this kind were listed, or the server has no such kind. Returns what follows when these
    /// were the last.
    pub(super) fn listed(&self, kind: Kind) -> Vec<Event> {
        let mut all = self.lock();
        let was_complete = all.listed.len() == Kind::ALL.len();
        all.listed.insert(kind);
        if was_complete || all.listed.len() < Kind::ALL.len() {
            return Vec::new();
        }
        vec![Event::Synced, Event::Freshness(Freshness::Live)]
    }

    /// This freshness is the last that was sent.
    pub(super) fn told(&self, freshness: Freshness) {
        self.lock().freshness = Some(freshness);
    }

    /// What to report: once, although several watches fail repeatedly for one reason.
    pub(super) fn failing(&self, failing: Failing) -> Option<Event> {
        self.lock().meet(failing, Instant::now()).map(Event::Unserved)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn freshness_after(&mut self, health: Health) -> Option<Event> {
        let Health::Is(now) = health else { return None };
        if !is_news(self.freshness?, now) {
            return None;
        }
        self.freshness = Some(now);
        Some(Event::Freshness(now))
    }

    /// What to report: once, although several watches fail repeatedly for one reason.
    fn meet(&mut self, failing: Failing, now: Instant) -> Option<String> {
        let Failing { trouble, overload, passing_since } = failing;
        self.troubles.retain(|_, met| now.duration_since(*met) < TROUBLE_OVER);
        let settling = if self.freshness.is_some() {
            // It has served this agent before, so a restart is more likely than a changed role.
            self.settling * FAMILIAR
        } else {
            self.settling
        };
        if passing_since.is_some_and(|since| now.duration_since(since) < settling) {
            return None;
        }
        let same = match overload {
            Some(_) => "overload".to_owned(),
            None => trouble.clone(),
        };
        self.troubles.insert(same, now).is_none().then_some(trouble)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETTLING: Duration = Duration::from_secs(8);

    fn new() -> WatchAggregator {
        WatchAggregator::new(SETTLING)
    }

    /// For each occurrence, at this second and temporary since that one: whether it is reported.
    fn said(all: &WatchAggregator, met: &[(u64, Option<u64>)]) -> Vec<bool> {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let meet = |(second, since): &(u64, Option<u64>)| {
            let passing_since = since.map(at);
            let failing = Failing { passing_since, ..Failing::lasting("it fails".to_owned()) };
            all.lock().meet(failing, at(*second)).is_some()
        };
        met.iter().map(meet).collect()
    }

    #[test]
    fn a_trouble_is_said_once_while_it_lasts_and_what_may_pass_if_it_lasts() {
        let met = [0, 1, 30, 60, 200].map(|second| (second, None));
        assert_eq!(said(&new(), &met), [true, false, false, false, false]);
        let comes_back = [0, 1, 200].map(|second| (second, None));
        assert_eq!(said(&new(), &comes_back), [true, false, true]);
        let lasts = [0, 1, 3, 9, 20].map(|second| (second, Some(0)));
        assert_eq!(said(&new(), &lasts), [false, false, false, true, false]);
        let passes = [(0, 0), (7, 0), (9, 9), (16, 9), (18, 18)];
        assert_eq!(said(&new(), &passes.map(|(second, since)| (second, Some(since)))), [false; 5]);
    }

    #[test]
    fn a_server_that_cannot_serve_is_said_once_whatever_its_words() {
        let all = new();
        let said = [429, 503, 500].map(|status| {
            let trouble = format!("it answers {status}");
            let failing = Failing { trouble, overload: Some(status), passing_since: None };
            all.failing(failing).is_some()
        });
        assert_eq!(said, [true, false, false]);
    }

    #[test]
    fn a_server_that_has_served_before_is_given_more_time() {
        let all = new();
        let last = Kind::ALL.map(|kind| all.listed(kind)).into_iter().flatten();
        let last: Vec<_> = last.collect();
        let [Event::Synced, Event::Freshness(freshness)] = &last[..] else { panic!("{last:?}") };
        all.told(*freshness);
        assert_eq!(said(&all, &[9, 23, 25].map(|second| (second, Some(0)))), [false, false, true]);
    }
}

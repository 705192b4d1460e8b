//! When the API server was heard of, by each watch: how fresh is what is known.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::source::Freshness;
use crate::source::object::Kind;

/// What is known of one kind's watch.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// How many are open: a new one may be open before the old one is noticed to be gone.
    open: u32,
    /// How often one was opened.
    opened: u64,
    /// When the last one was closed, or was to begin.
    closed: Option<Instant>,
    /// When something was heard by one.
    heard: Option<SystemTime>,
}

/// What can be said now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// This.
    Is(Freshness),
    /// Nothing new, unless nothing happens until then.
    Unclear(Option<Instant>),
}

/// The three watches of one API server. All clones share one state.
#[derive(Clone, Debug)]
pub(super) struct WatchHealth(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Watches end, servers restart: a watch that is closed for less than this is no news.
    grace: Duration,
    seen: Mutex<[Seen; 3]>,
    moved: Notify,
}

/// An open watch, until it is dropped.
#[derive(Debug)]
pub(super) struct Open {
    watch_health: WatchHealth,
    kind: Kind,
}

impl WatchHealth {
    /// Of three watches that are still to begin; one that is closed for less than `grace` is no news.
    pub(super) fn new(grace: Duration) -> Self {
        Self(Arc::new(Inner { grace, seen: Mutex::default(), moved: Notify::new() }))
    }

    /// The watch of `kind` has begun.
    pub(super) fn open(&self, kind: Kind) -> Open {
        let mut seen = self.lock();
        let one = &mut seen[index(kind)];
        one.open += 1;
        one.opened += 1;
        one.heard = Some(SystemTime::now());
        drop(seen);
        self.0.moved.notify_one();
        Open { watch_health: self.clone(), kind }
    }

    /// All of `kind` has been listed: its watch is to begin.
    pub(super) fn listed(&self, kind: Kind) {
        let mut seen = self.lock();
        let one = &mut seen[index(kind)];
        one.heard = Some(SystemTime::now());
        one.closed = Some(Instant::now());
        drop(seen);
        self.0.moved.notify_one();
    }

    /// How often a watch of `kind` has begun.
    pub(super) fn opened(&self, kind: Kind) -> u64 {
        self.lock()[index(kind)].opened
    }

    /// Returns after some watch has begun or ended.
    pub(super) async fn moved(&self) {
        self.0.moved.notified().await;
    }

    /// What can be said of all of them.
    pub(super) fn health(&self, now: Instant) -> Health {
        health(&self.lock(), self.0.grace, now)
    }

    fn lock(&self) -> MutexGuard<'_, [Seen; 3]> {
        // Nothing in here panics half-way.
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Something came.
    pub(super) fn heard(&self) {
        self.watch_health.lock()[index(self.kind)].heard = Some(SystemTime::now());
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut seen = self.watch_health.lock();
        let one = &mut seen[index(self.kind)];
        one.open -= 1;
        one.closed = Some(Instant::now());
        drop(seen);
        self.watch_health.0.moved.notify_one();
    }
}

const fn index(kind: Kind) -> usize {
    match kind {
        Kind::Node => 0,
        Kind::Slice => 1,
        Kind::Service => 2,
    }
}

/// All open is live. Once one is closed for longer than `grace`, it is as of when the first of those
/// that are closed was heard of.
fn health(seen: &[Seen; 3], grace: Duration, now: Instant) -> Health {
    if seen.iter().all(|one| one.open > 0) {
        return Health::Is(Freshness::Live);
    }
    // One that never was to begin has yet to be.
    let closed = seen.iter().filter(|one| one.open == 0);
    let closed = closed.filter_map(|one| Some((one.closed? + grace, one.heard?)));
    let (Some(until), Some(heard)) =
        (closed.clone().map(|(until, _)| until).min(), closed.map(|(_, heard)| heard).min())
    else {
        return Health::Unclear(None);
    };
    if now < until {
        return Health::Unclear(Some(until));
    }
    Health::Is(Freshness::AsOf(heard))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    fn seen(open: u32, closed: Option<Instant>, heard: u64) -> Seen {
        let heard = SystemTime::UNIX_EPOCH + Duration::from_secs(heard);
        Seen { open, opened: 1, closed, heard: Some(heard) }
    }

    #[test]
    fn it_is_live_while_all_watches_are_open() {
        let now = Instant::now();
        assert_eq!(health(&[seen(1, None, 0); 3], GRACE, now), Health::Is(Freshness::Live));
        let one_missing = [seen(1, None, 0), seen(1, None, 0), Seen::default()];
        assert_eq!(health(&one_missing, GRACE, now), Health::Unclear(None));
    }

    #[test]
    fn a_watch_that_is_closed_for_a_moment_is_no_news() {
        let now = Instant::now();
        let all = [seen(1, None, 9), seen(0, Some(now), 5), seen(0, Some(now + GRACE), 3)];
        assert_eq!(health(&all, GRACE, now), Health::Unclear(Some(now + GRACE)));
    }

    #[test]
    fn it_is_as_old_as_the_watch_that_has_been_silent_longest() {
        let now = Instant::now();
        let all = [seen(1, None, 1), seen(0, Some(now), 5), seen(0, Some(now), 3)];
        let heard = SystemTime::UNIX_EPOCH + Duration::from_secs(3);
        assert_eq!(health(&all, GRACE, now + GRACE), Health::Is(Freshness::AsOf(heard)));
    }

    #[test]
    fn a_watch_that_is_open_twice_is_open_until_both_are_closed() {
        let watch_health = WatchHealth::new(GRACE);
        let all: Vec<_> =
            [Kind::Node, Kind::Slice, Kind::Service].map(|kind| watch_health.open(kind)).into();
        let again = watch_health.open(Kind::Node);
        drop(again);
        assert_eq!(watch_health.health(Instant::now()), Health::Is(Freshness::Live));
        drop(all);
        assert!(matches!(watch_health.health(Instant::now()), Health::Unclear(Some(_))));
        assert_eq!(watch_health.opened(Kind::Node), 2);
    }
}

//! When each watch received something, and how fresh the state is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::source::object::Kind;
use topo_lb_core::cluster::Freshness;

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// Open watches: a new one may be open before the end of the old one is noticed.
    open: u32,
    opened: u64,
    /// When the last one was closed, or a listing preceded the first.
    closed: Option<Instant>,
    /// When one last received something.
    heard: Option<SystemTime>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Is(Freshness),
    /// Unchanged for now; if nothing happens, to be judged again at this time.
    Unclear(Option<Instant>),
}

/// The watches of one API server. Clones share one state.
#[derive(Clone, Debug)]
pub(super) struct WatchHealth(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// A watch that is closed for less than this counts as open: servers restart.
    grace: Duration,
    /// By [`Kind`].
    seen: Mutex<[Seen; Kind::ALL.len()]>,
    moved: Notify,
}

/// The guard of an open watch; dropping it records the end.
#[derive(Debug)]
pub(super) struct Open {
    watch_health: WatchHealth,
    kind: Kind,
}

impl WatchHealth {
    /// Watches that have not begun.
    pub(super) fn new(grace: Duration) -> Self {
        Self(Arc::new(Inner { grace, seen: Mutex::default(), moved: Notify::new() }))
    }

    /// Records that the watch of `kind` began.
    pub(super) fn open(&self, kind: Kind) -> Open {
        self.change(kind, |seen| {
            seen.open += 1;
            seen.opened += 1;
            seen.heard = Some(SystemTime::now());
        });
        Open { watch_health: self.clone(), kind }
    }

    /// Records that all objects of `kind` were listed, so that its watch is due.
    pub(super) fn listed(&self, kind: Kind) {
        self.change(kind, |seen| {
            seen.heard = Some(SystemTime::now());
            seen.closed = Some(Instant::now());
        });
    }

    fn change(&self, kind: Kind, change: impl FnOnce(&mut Seen)) {
        change(&mut self.lock()[kind as usize]);
        self.0.moved.notify_one();
    }

    /// How many watches of `kind` have begun.
    pub(super) fn opened(&self, kind: Kind) -> u64 {
        self.lock()[kind as usize].opened
    }

    /// Waits until a watch begins or ends, or a listing is complete.
    pub(super) async fn moved(&self) {
        self.0.moved.notified().await;
    }

    /// The freshness by the watches of all required kinds.
    pub(super) fn health(&self, now: Instant) -> Health {
        health(&self.lock()[..Kind::REQUIRED], self.0.grace, now)
    }

    fn lock(&self) -> MutexGuard<'_, [Seen; Kind::ALL.len()]> {
        // No code panics while it holds the lock.
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    /// Records that something was received.
    pub(super) fn heard(&self) {
        self.watch_health.lock()[self.kind as usize].heard = Some(SystemTime::now());
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.watch_health.change(self.kind, |seen| {
            seen.open -= 1;
            seen.closed = Some(Instant::now());
        });
    }
}

/// Live if all watches are open. If one is closed for longer than `grace`, as of the earliest
/// reception by a closed watch.
fn health(seen: &[Seen], grace: Duration, now: Instant) -> Health {
    if seen.iter().all(|one| one.open > 0) {
        return Health::Is(Freshness::Live);
    }
    // Watches that were never due do not count.
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

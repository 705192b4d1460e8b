//! Which Nodes are watched: only this node's, or all. In a cluster of 5,000 nodes 17 Nodes change
//! per second, and agents that watch all get each change. Most agents need only their own Node.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::backoff::{pause, random};
use topo_lb_core::cluster::KnownNodes;

/// All Nodes stay watched until unneeded for this time, so that a Service that comes and goes does
/// not cause repeated listings of thousands of Nodes.
const NARROW_AFTER: Duration = Duration::from_secs(300);
/// Longest pause between attempts to list all Nodes. Each briefly closes the own Node's watch.
const LONGEST: Duration = Duration::from_secs(60);

/// This node, and which Nodes it needs.
#[derive(Clone, Debug)]
pub struct Nodes {
    pub(super) own: Arc<str>,
    wanted: watch::Receiver<KnownNodes>,
}

impl Nodes {
    /// For the node `own`. The first value of `wanted` applies from the start.
    #[must_use]
    pub const fn new(own: Arc<str>, wanted: watch::Receiver<KnownNodes>) -> Self {
        Self { own, wanted }
    }
}

#[derive(Debug)]
pub(super) struct Reach {
    /// `None` for kinds that are always watched as a whole.
    nodes: Option<Nodes>,
    now: KnownNodes,
    /// Since when all Nodes are watched although unneeded.
    idle: Option<Instant>,
    /// The watch changed from the own Node to all, and all Nodes are not listed yet.
    widening: bool,
    /// Set while the last attempt to list all Nodes failed.
    failed: Option<Failed>,
}

/// Failed attempts in a row to list all Nodes.
#[derive(Debug)]
struct Failed {
    since: Instant,
    attempts: u32,
    /// Time of the next attempt. `None` until the own Node is listed.
    again: Option<Instant>,
}

impl Failed {
    /// Waits until the next attempt is due.
    async fn over(&self) {
        match self.again {
            Some(again) => sleep_until(again).await,
            None => pending().await,
        }
    }
}

impl Reach {
    /// Always watches all objects of a kind.
    pub(super) const fn all() -> Self {
        Self { nodes: None, now: KnownNodes::All, idle: None, widening: false, failed: None }
    }

    pub(super) fn of(nodes: Nodes) -> Self {
        let now = *nodes.wanted.borrow();
        Self { nodes: Some(nodes), now, ..Self::all() }
    }

    pub(super) const fn now(&self) -> KnownNodes {
        self.now
    }

    pub(super) fn selector(&self) -> Option<String> {
        let nodes = self.nodes.as_ref().filter(|_| self.now == KnownNodes::Own)?;
        Some(format!("metadata.name={}", nodes.own))
    }

    /// Records that all objects now watched were listed.
    pub(super) fn listed(&mut self) {
        match (self.now, &mut self.failed) {
            (KnownNodes::All, failed) => {
                self.widening = false;
                *failed = None;
            }
            (KnownNodes::Own, Some(failed)) => {
                failed.again.get_or_insert_with(|| {
                    Instant::now() + pause(failed.attempts, LONGEST, random())
                });
            }
            (KnownNodes::Own, None) => {}
        }
    }

    /// Records a failed request. If it was to list all Nodes, switches to the own Node and retries
    /// all later. Returns since when all Nodes cannot be listed; `None` if nothing changes.
    pub(super) fn fall_back(&mut self) -> Option<Instant> {
        if !std::mem::take(&mut self.widening) {
            return None;
        }
        self.now = KnownNodes::Own;
        self.idle = None;
        let first = Failed { since: Instant::now(), attempts: 0, again: None };
        let failed = self.failed.get_or_insert(first);
        failed.attempts = failed.attempts.saturating_add(1);
        failed.again = None;
        Some(failed.since)
    }

    /// Waits until the objects to watch change. Cancel-safe.
    pub(super) async fn turned(&mut self) {
        let Some(Nodes { wanted, .. }) = &mut self.nodes else { return pending().await };
        loop {
            let want = *wanted.borrow_and_update();
            match (self.now, want) {
                (KnownNodes::Own, KnownNodes::All) => {
                    if let Some(failed) = &self.failed {
                        tokio::select! {
                            biased;
                            () = failed.over() => {}
                            changed = wanted.changed() => {
                                if changed.is_err() {
                                    pending::<()>().await;
                                }
                                continue;
                            }
                        }
                    }
                    self.now = KnownNodes::All;
                    self.widening = true;
                    return;
                }
                (KnownNodes::All, KnownNodes::Own) => {
                    let idle = *self.idle.get_or_insert_with(Instant::now);
                    tokio::select! {
                        changed = wanted.changed() => if changed.is_err() { pending().await },
                        () = sleep_until(idle + NARROW_AFTER) => {
                            self.now = KnownNodes::Own;
                            self.idle = None;
                            return;
                        }
                    }
                }
                (KnownNodes::Own, KnownNodes::Own) | (KnownNodes::All, KnownNodes::All) => {
                    self.idle = None;
                    if wanted.changed().await.is_err() {
                        pending().await
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    fn reach(first: KnownNodes) -> (watch::Sender<KnownNodes>, Reach) {
        let (wanted, nodes) = watch::channel(first);
        (wanted, Reach::of(Nodes::new("n1".into(), nodes)))
    }

    /// The time until the watched Nodes change; `None` if they do not.
    async fn turns(reach: &mut Reach) -> Option<Duration> {
        let begun = Instant::now();
        timeout(NARROW_AFTER * 3, reach.turned()).await.ok()?;
        Some(begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn all_nodes_are_watched_at_once_and_given_up_late() {
        let (wanted, mut reach) = reach(KnownNodes::Own);
        assert_eq!(reach.selector().as_deref(), Some("metadata.name=n1"));
        assert_eq!(turns(&mut reach).await, None);
        wanted.send_replace(KnownNodes::All);
        assert_eq!(turns(&mut reach).await, Some(Duration::ZERO));
        assert_eq!((reach.now(), reach.selector()), (KnownNodes::All, None));
        assert_eq!(turns(&mut reach).await, None);
        wanted.send_replace(KnownNodes::Own);
        let took = turns(&mut reach).await.unwrap();
        assert!(took.abs_diff(NARROW_AFTER) < Duration::from_millis(10), "{took:?}");
        assert_eq!(reach.now(), KnownNodes::Own);
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_comes_and_goes_lists_nothing() {
        let (wanted, mut reach) = reach(KnownNodes::All);
        for _ in 0..100 {
            wanted.send_replace(KnownNodes::Own);
            // Other events interrupt the wait.
            for _ in 0..4 {
                assert!(timeout(NARROW_AFTER / 5, reach.turned()).await.is_err());
            }
            wanted.send_replace(KnownNodes::All);
            assert!(timeout(Duration::from_secs(1), reach.turned()).await.is_err());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn all_nodes_are_asked_for_at_longer_and_longer_intervals_of_at_most_a_minute() {
        let (wanted, mut reach) = reach(KnownNodes::Own);
        reach.listed();
        assert_eq!(reach.fall_back(), None, "the own Node is watched already");
        wanted.send_replace(KnownNodes::All);
        assert_eq!(turns(&mut reach).await, Some(Duration::ZERO));
        let begun = Instant::now();
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_eq!(reach.fall_back(), Some(begun));
            assert_eq!(reach.selector().as_deref(), Some("metadata.name=n1"));
            assert_eq!(turns(&mut reach).await, None, "the own Node is listed first");
            reach.listed();
            // A Service that comes and goes, or a new listing of the own Node, does not matter.
            wanted.send_replace(KnownNodes::Own);
            assert!(timeout(Duration::from_millis(1), reach.turned()).await.is_err());
            wanted.send_replace(KnownNodes::All);
            reach.listed();
            pauses.push(turns(&mut reach).await.unwrap());
            assert_eq!(reach.now(), KnownNodes::All);
        }
        assert!(pauses[0] <= Duration::from_millis(501), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= LONGEST + Duration::from_millis(1)));
        assert!(pauses[8..].iter().all(|pause| *pause >= LONGEST / 2 - Duration::from_millis(2)));

        reach.listed();
        assert_eq!(reach.fall_back(), None, "a watch of all Nodes that fails is begun again");
        assert_eq!(reach.now(), KnownNodes::All);
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_goes_on_while_something_else_is_heard() {
        let (wanted, mut reach) = reach(KnownNodes::All);
        wanted.send_replace(KnownNodes::Own);
        let begun = Instant::now();
        while timeout(Duration::from_secs(7), reach.turned()).await.is_err() {
            sleep(Duration::from_millis(1)).await;
        }
        assert!(begun.elapsed() < NARROW_AFTER + Duration::from_secs(8), "{:?}", begun.elapsed());
    }
}

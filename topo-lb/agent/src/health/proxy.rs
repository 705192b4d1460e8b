//! Whether this node forwards connections to Services, and whether it is about to leave.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::time::Instant;

use super::answers::Health;
use super::check::Wanted;
use crate::admin::answers::STUCK;
use crate::metrics::Figures;
use crate::readiness::Readiness;

/// The agent, as load balancers see it.
pub(super) struct Proxy {
    figures: Arc<Figures>,
    readiness: watch::Receiver<Readiness>,
    forwards_before: bool,
    leaving: watch::Receiver<bool>,
    wanted: watch::Receiver<Wanted>,
    /// Since when plans fail, if they do.
    failing: watch::Sender<Option<Instant>>,
}

impl Proxy {
    pub(super) fn new(
        figures: Arc<Figures>,
        readiness: watch::Receiver<Readiness>,
        forwards_before: bool,
        leaving: watch::Receiver<bool>,
        wanted: watch::Receiver<Wanted>,
    ) -> Self {
        let failing = watch::Sender::new(None);
        Self { figures, readiness, forwards_before, leaving, wanted, failing }
    }

    /// Follows since when plans fail, until the agent ends.
    pub(super) async fn follow(&self, mut readiness: watch::Receiver<Readiness>) {
        loop {
            let is_stuck = readiness.borrow_and_update().stuck.is_some();
            self.failing.send_modify(|since| {
                *since = is_stuck.then(|| since.unwrap_or_else(Instant::now));
            });
            if readiness.changed().await.is_err() {
                return;
            }
        }
    }

    /// Whether connections are forwarded, and changes carried out within a minute.
    pub(super) fn health(&self) -> Health {
        let forwards = self.readiness.borrow().programmed || self.forwards_before;
        let failing = self.failing.borrow().map(|since| since.elapsed());
        let seconds = self.figures.last_programmed.load(Relaxed);
        let updated = || SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        Health {
            now: SystemTime::now(),
            updated: (seconds > 0).then(updated),
            is_healthy: healthy(forwards, failing, self.figures.since_beat()),
        }
    }

    /// Whether new connections may come: the Node is not about to leave, nor evacuated.
    pub(super) fn is_eligible(&self) -> bool {
        !*self.leaving.borrow() && !self.wanted.borrow().is_left
    }
}

/// kube-proxy, too, waits for a minute until a change that is not carried out makes it unhealthy.
fn healthy(forwards: bool, failing: Option<Duration>, since_beat: Duration) -> bool {
    forwards && since_beat < STUCK && failing.is_none_or(|failing| failing < STUCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_counts_after_a_minute() {
        let (soon, late) = (STUCK - Duration::from_millis(1), STUCK);
        for (forwards, failing, since_beat, wanted) in [
            (true, None, soon, true),
            (true, Some(soon), soon, true),
            (true, Some(late), soon, false),
            (true, None, late, false),
            (false, None, soon, false),
        ] {
            let said = healthy(forwards, failing, since_beat);
            assert_eq!(said, wanted, "{forwards} {failing:?} {since_beat:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn failures_in_a_row_count_from_the_first() {
        let (readiness, receiver) = watch::channel(Readiness::default());
        let figures = Arc::<Figures>::default();
        let (_leaving, leaves) = watch::channel(false);
        let proxy = Arc::new(Proxy::new(
            figures,
            receiver.clone(),
            true,
            leaves,
            watch::channel(Wanted::default()).1,
        ));
        let followed = Arc::clone(&proxy);
        tokio::spawn(async move { followed.follow(receiver).await });
        let stick = |why: Option<&str>| {
            readiness.send_modify(|readiness| readiness.stuck = why.map(str::to_owned));
        };
        let since = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            *proxy.failing.borrow()
        };
        stick(Some("one"));
        let first = since().await.expect("it fails");
        stick(Some("another"));
        assert_eq!(since().await, Some(first));
        stick(None);
        assert_eq!(since().await, None);
        stick(Some("one"));
        assert!(since().await > Some(first));
    }
}

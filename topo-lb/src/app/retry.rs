//! When a plan that failed is made again.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Pause after the first failure; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause after a failure that may pass by itself. Changes wait for it, so it is short.
const LONGEST: Duration = Duration::from_secs(5);
/// Pause after a failure that lasts until somebody acts.
const LASTING: Duration = Duration::from_secs(30);

/// The schedule of attempts. Changes that come while an attempt is pending are taken in and wait for it.
#[derive(Debug, Default)]
pub(super) struct Retry {
    pause: Option<Duration>,
    at: Option<Instant>,
}

impl Retry {
    /// Notes that a plan failed; how long until the next attempt. `may_pass`: the failure can be over
    /// by itself.
    pub(super) fn failed(&mut self, may_pass: bool) -> Duration {
        let pause = match self.pause {
            _ if !may_pass => LASTING,
            None => FIRST,
            Some(pause) => (pause * 2).min(LONGEST),
        };
        self.pause = Some(pause);
        self.at = Some(Instant::now() + pause);
        pause
    }

    /// Notes that a plan was carried out.
    pub(super) const fn succeeded(&mut self) {
        (self.pause, self.at) = (None, None);
    }

    /// Whether an attempt is scheduled for later.
    pub(super) fn is_pending(&self) -> bool {
        self.at.is_some_and(|at| at > Instant::now())
    }

    /// Returns when the next attempt is due; never while none is scheduled. The moment is fixed: asking
    /// again does not put it off.
    pub(super) async fn due(&self) {
        match self.at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the agent's loop does for `span` while every plan fails: it inspects every 2 s, hears of a
    /// change every `flood`, and makes plans. When plans were made, in milliseconds from the first on.
    async fn attempts(span: Duration, flood: Duration, may_pass: bool) -> Vec<u64> {
        let (began, mut retry, mut made) = (Instant::now(), Retry::default(), vec![0]);
        retry.failed(may_pass);
        let mut inspection = tokio::time::interval(Duration::from_secs(2));
        let mut changes = tokio::time::interval(flood);
        changes.tick().await;
        let end = began + span;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(end) => return made,
                _ = inspection.tick() => continue,
                _ = changes.tick() => {}
                () = retry.due() => {}
            }
            if !retry.is_pending() {
                made.push(began.elapsed().as_millis() as u64);
                retry.failed(may_pass);
            }
        }
    }

    const LONG: Duration = Duration::from_secs(600);
    const NEVER: Duration = Duration::from_secs(3_600);

    #[tokio::test(start_paused = true)]
    async fn attempts_go_on_beside_inspections() {
        let made = attempts(LONG, NEVER, true).await;
        assert_eq!(made[..7], [0, 500, 1_500, 3_500, 7_500, 12_500, 17_500]);
        assert!(made.windows(2).skip(5).all(|pair| pair[1] - pair[0] == 5_000), "{made:?}");
        assert_eq!(made.last(), Some(&597_500));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_changes_makes_no_attempt_come_sooner() {
        let flood = Duration::from_millis(7);
        assert_eq!(
            attempts(LONG, flood, true).await.len(),
            attempts(LONG, NEVER, true).await.len()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_lasts_has_long_pauses_from_the_start() {
        let made = attempts(LONG, NEVER, false).await;
        assert_eq!(made, (0..20).map(|attempt| attempt * 30_000).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_begins_the_schedule_anew() {
        let mut retry = Retry::default();
        assert_eq!(retry.failed(true), FIRST);
        assert_eq!(retry.failed(true), FIRST * 2);
        retry.succeeded();
        assert!(!retry.is_pending());
        assert_eq!(retry.failed(true), FIRST);
        assert!(retry.is_pending());
        retry.due().await;
        assert!(!retry.is_pending());
    }
}

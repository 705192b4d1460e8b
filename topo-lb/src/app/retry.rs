//! When a failed plan is retried.

use std::time::Duration;

use tokio::time::{Instant, Interval, sleep_until};

use crate::datapath::maps::error::StoreError;

/// Pause after the first failure; it doubles with each further failure.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause after a failure that may be temporary. Short, as changes wait for it.
const LONGEST: Duration = Duration::from_secs(5);
/// Pause after a permanent failure, which somebody must repair.
const LASTING: Duration = Duration::from_secs(30);

/// The schedule of attempts. Changes that arrive before the next attempt wait for it.
#[derive(Debug, Default)]
pub(super) struct Retry {
    pause: Option<Duration>,
    at: Option<Instant>,
}

#[derive(Debug)]
pub(super) enum Turn<E> {
    /// Inspect the datapath; make no plan.
    Inspect,
    /// Make a plan, after taking in the event if there is one; without one, the plan failed before or left
    /// changes.
    Plan(Option<E>),
}

/// Waits for the next inspection, event or retry. Inspections and events do not delay a retry.
pub(super) async fn next_turn<E>(
    inspection: &mut Interval,
    event: impl Future<Output = E>,
    retry: &Retry,
) -> Turn<E> {
    tokio::select! {
        _ = inspection.tick() => Turn::Inspect,
        event = event => Turn::Plan(Some(event)),
        () = retry.due() => Turn::Plan(None),
    }
}

impl Retry {
    /// Makes a plan, unless a retry is scheduled for later: changes then wait for it, at most for
    /// its pause. A failure comes with the pause until the retry.
    pub(super) fn attempt<T>(
        &mut self,
        plan: impl FnOnce() -> Result<T, StoreError>,
    ) -> Option<Result<T, (StoreError, Duration)>> {
        if self.is_pending() {
            return None;
        }
        let made = plan();
        Some(match made {
            Ok(made) => {
                self.succeeded();
                Ok(made)
            }
            Err(error) => {
                let pause = self.failed(error.may_pass());
                Err((error, pause))
            }
        })
    }

    /// Records a failed plan; returns the pause. `may_pass`: the failure may be temporary.
    fn failed(&mut self, may_pass: bool) -> Duration {
        let pause = match self.pause {
            _ if !may_pass => LASTING,
            None => FIRST,
            Some(pause) => (pause * 2).min(LONGEST),
        };
        self.pause = Some(pause);
        self.at = Some(Instant::now() + pause);
        pause
    }

    /// Makes another plan due: the last one left changes to it.
    pub(super) fn go_on(&mut self) {
        self.at = Some(Instant::now());
    }

    const fn succeeded(&mut self) {
        (self.pause, self.at) = (None, None);
    }

    fn is_pending(&self) -> bool {
        self.at.is_some_and(|at| at > Instant::now())
    }

    /// Returns when the next attempt is due; never while none is. Repeated calls do not delay it.
    async fn due(&self) {
        match self.at {
            Some(at) => sleep_until(at).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Temporary: the kernel has no memory now.
    const PASSES: i32 = libc::ENOMEM;
    /// Permanent: the process may not write to the map.
    const LASTS: i32 = libc::EPERM;

    fn refused(errno: i32) -> StoreError {
        StoreError::Grace(std::io::Error::from_raw_os_error(errno))
    }

    /// Runs the agent's loop for `span` while every plan fails: an inspection every 2 s, a change
    /// every `flood`. Returns when plans were made, in milliseconds from the start.
    async fn attempts(span: Duration, flood: Duration, errno: i32) -> Vec<u64> {
        let (began, mut retry, mut made) = (Instant::now(), Retry::default(), Vec::new());
        let mut inspection = tokio::time::interval(Duration::from_secs(2));
        let mut changes = tokio::time::interval(flood);
        let end = began + span;
        loop {
            let turn = tokio::select! {
                biased;
                () = sleep_until(end) => return made,
                turn = next_turn(&mut inspection, changes.tick(), &retry) => turn,
            };
            if matches!(turn, Turn::Inspect) {
                continue;
            }
            retry.attempt(|| {
                made.push(began.elapsed().as_millis() as u64);
                Err::<(), _>(refused(errno))
            });
        }
    }

    const LONG: Duration = Duration::from_secs(600);
    const NEVER: Duration = Duration::from_secs(3_600);

    #[tokio::test(start_paused = true)]
    async fn attempts_go_on_beside_inspections() {
        let made = attempts(LONG, NEVER, PASSES).await;
        assert_eq!(made[..7], [0, 500, 1_500, 3_500, 7_500, 12_500, 17_500]);
        assert!(made.windows(2).skip(5).all(|pair| pair[1] - pair[0] == 5_000), "{made:?}");
        assert_eq!(made.last(), Some(&597_500));
    }

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_changes_makes_no_attempt_come_sooner() {
        let flood = Duration::from_millis(7);
        assert_eq!(
            attempts(LONG, flood, PASSES).await.len(),
            attempts(LONG, NEVER, PASSES).await.len()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_that_lasts_has_long_pauses_from_the_start() {
        let made = attempts(LONG, NEVER, LASTS).await;
        assert_eq!(made, (0..20).map(|attempt| attempt * 30_000).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn a_success_begins_the_schedule_anew() {
        let mut retry = Retry::default();
        let fails = |retry: &mut Retry| {
            let made = retry.attempt(|| Err::<(), _>(refused(PASSES)));
            made.and_then(Result::err).map(|(_, pause)| pause)
        };
        assert_eq!(fails(&mut retry), Some(FIRST));
        assert_eq!(fails(&mut retry), None, "it waits for the retry");
        retry.due().await;
        assert_eq!(fails(&mut retry), Some(FIRST * 2));
        retry.due().await;
        for plan in 0..2 {
            assert!(matches!(retry.attempt(|| Ok(plan)), Some(Ok(made)) if made == plan));
        }
        assert_eq!(fails(&mut retry), Some(FIRST));
    }
}

//! How many cgroups are queried in a round. Pure: callers pass the time.
//!
//! A program is loaded before it is attached, so all cgroups are queried after new programs were
//! loaded. With thousands of cgroups that takes tens of milliseconds, so a budget limits it if
//! programs come and go all the time.

use std::time::{Duration, Instant};

use topo_lb_core::rate::Rate;

/// Cgroups per ordinary round.
const ROUND: usize = 256;
/// Cgroups per whole round.
const WHOLE: usize = 8192;
/// Whole rounds after programs were loaded or removed.
const BURST: u32 = 6;
/// Most consecutive whole rounds: those of two bursts.
const MOST: u32 = 2 * BURST;
/// Time until another whole round is allowed.
const PAUSE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Pace {
    /// Whole rounds still wanted.
    wanted: u32,
    /// Limits whole rounds.
    whole: Rate,
}

impl Pace {
    pub(crate) fn new(now: Instant) -> Self {
        Self { wanted: BURST, whole: Rate::new(MOST, PAUSE, now) }
    }

    /// Begins a round; returns how many cgroups it may query. `changed`: programs were loaded or
    /// removed since the last round.
    pub(crate) fn begin(&mut self, changed: bool, now: Instant) -> usize {
        if changed {
            self.wanted = BURST;
        }
        if self.wanted == 0 || !self.whole.take(now) {
            return ROUND;
        }
        self.wanted -= 1;
        WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pace without a recent change, and the time.
    fn rested() -> (Pace, Instant) {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!([0; 7].map(|_| pace.begin(false, start))[5..], [WHOLE, ROUND]);
        (pace, start + PAUSE * MOST)
    }

    #[test]
    fn after_a_change_all_cgroups_are_asked_at_once_and_some_times_more() {
        let (mut pace, now) = rested();
        // The second change comes before the budget has grown again.
        for _ in 0..2 {
            assert_eq!(pace.begin(true, now), WHOLE);
            assert_eq!([0; 5].map(|_| pace.begin(false, now)), [WHOLE; 5]);
            assert_eq!([0; 3].map(|_| pace.begin(false, now)), [ROUND; 3]);
        }
    }

    #[test]
    fn where_changes_never_end_whole_rounds_are_rare() {
        let (mut pace, now) = rested();
        assert_eq!([0; 12].map(|_| pace.begin(true, now)), [WHOLE; 12]);
        let times = (1..=100).map(|tenth| now + PAUSE * tenth / 10);
        let whole = times.filter(|&now| pace.begin(true, now) == WHOLE).count();
        assert_eq!(whole, 10);
    }

    #[test]
    fn a_change_that_came_when_no_whole_round_was_allowed_gets_its_own_later() {
        let (mut pace, now) = rested();
        assert!((0..=MOST).any(|_| pace.begin(true, now) == ROUND));
        assert_eq!(pace.begin(false, now + PAUSE), WHOLE);
    }
}

//! How many cgroups are queried in a round. Pure.
//!
//! Programs are attached after they are loaded: when new programs are loaded, all cgroups are queried. On
//! a node with thousands of cgroups that takes tens of milliseconds, so a budget limits it where programs
//! come and go all the time.

/// Cgroups that an ordinary round queries.
const ROUND: usize = 256;
/// Cgroups that a whole round queries.
const WHOLE: usize = 8192;
/// Whole rounds after programs were loaded or removed.
const BURST: u32 = 6;
/// Whole rounds that may follow one another: those of two bursts.
const MOST: u32 = 2 * BURST;
/// Rounds until another whole one is allowed: about 5 s.
const PAUSE: u32 = 11;

/// The rounds so far.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Whole rounds that are wanted.
    wanted: u32,
    /// Whole rounds that are allowed.
    allowed: u32,
    /// Rounds since one was allowed last.
    since: u32,
}

impl Pace {
    /// Before the first round.
    pub(crate) const fn new() -> Self {
        Self { wanted: BURST, allowed: MOST, since: 0 }
    }

    /// Begins a round, and says how many cgroups it may ask. `changed`: programs were loaded or
    /// removed since the last round.
    pub(crate) fn begin(&mut self, changed: bool) -> usize {
        self.since += 1;
        if self.since == PAUSE {
            self.since = 0;
            self.allowed = (self.allowed + 1).min(MOST);
        }
        if changed {
            self.wanted = BURST;
        }
        if self.wanted == 0 || self.allowed == 0 {
            return ROUND;
        }
        self.wanted -= 1;
        self.allowed -= 1;
        WHOLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What so many rounds ask.
    fn rounds(pace: &mut Pace, count: u32, changed: bool) -> Vec<usize> {
        (0..count).map(|_| pace.begin(changed)).collect()
    }

    /// One that has seen no change for long.
    fn rested() -> Pace {
        let mut pace = Pace::new();
        rounds(&mut pace, 1_000, false);
        pace
    }

    #[test]
    fn after_a_change_all_cgroups_are_asked_at_once_and_some_times_more() {
        let mut pace = rested();
        // A second change comes before the first one's rounds are allowed anew.
        for _ in 0..2 {
            assert_eq!(pace.begin(true), WHOLE);
            assert_eq!(rounds(&mut pace, BURST - 1, false), vec![WHOLE; 5]);
            assert_eq!(rounds(&mut pace, 3, false), [ROUND; 3]);
        }
    }

    #[test]
    fn where_changes_never_end_whole_rounds_are_rare() {
        let mut pace = rested();
        rounds(&mut pace, 2 * MOST, true);
        let asked = rounds(&mut pace, 10 * PAUSE, true);
        let whole = asked.iter().filter(|count| **count == WHOLE).count();
        assert_eq!(whole, 10);
    }

    #[test]
    fn a_change_that_came_when_no_whole_round_was_allowed_gets_its_own_later() {
        let mut pace = rested();
        rounds(&mut pace, 2 * MOST, true);
        assert!(rounds(&mut pace, PAUSE, false).contains(&WHOLE));
    }
}

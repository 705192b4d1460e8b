//! How many cgroups are queried in a round. Pure.
//!
//! A program is loaded before it is attached, so all cgroups are queried after new programs were
//! loaded. With thousands of cgroups that takes tens of milliseconds, so a budget limits it if
//! programs come and go all the time.

/// Cgroups per ordinary round.
const ROUND: usize = 256;
/// Cgroups per whole round.
const WHOLE: usize = 8192;
/// Whole rounds after programs were loaded or removed.
const BURST: u32 = 6;
/// Most consecutive whole rounds: those of two bursts.
const MOST: u32 = 2 * BURST;
/// Rounds until another whole one is allowed: about 5 s.
const PAUSE: u32 = 11;

#[derive(Debug)]
pub(crate) struct Pace {
    /// Whole rounds still wanted.
    wanted: u32,
    /// Whole rounds still allowed.
    allowed: u32,
    /// Rounds since `allowed` last grew.
    since: u32,
}

impl Pace {
    pub(crate) const fn new() -> Self {
        Self { wanted: BURST, allowed: MOST, since: 0 }
    }

    /// Begins a round; returns how many cgroups it may query. `changed`: programs were loaded or
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

    /// How many cgroups each of these rounds may query.
    fn rounds(pace: &mut Pace, count: u32, changed: bool) -> Vec<usize> {
        (0..count).map(|_| pace.begin(changed)).collect()
    }

    /// A pace without a recent change.
    fn rested() -> Pace {
        let mut pace = Pace::new();
        rounds(&mut pace, 1_000, false);
        pace
    }

    #[test]
    fn after_a_change_all_cgroups_are_asked_at_once_and_some_times_more() {
        let mut pace = rested();
        // The second change comes before the budget has grown again.
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

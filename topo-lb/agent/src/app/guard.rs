//! Reports what the agent restored after another process removed it: in the log at most once a
//! minute, and in readiness until it stops, as connections are not translated meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use topo_lb_kernel::datapath::attach::repair::Repairs;

/// Shortest time between two log lines with the same sentence.
const NEWS: Duration = Duration::from_secs(60);

/// What an inspection means for readiness.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nothing was missing.
    Quiet,
    /// What was missing.
    Disturbed(String),
    /// Everything is in place again; the self-probe must prove that it works.
    Over,
}

#[derive(Debug, Default)]
pub(super) struct Guard {
    is_disturbed: bool,
    /// When each sentence was last logged.
    told: BTreeMap<String, Instant>,
}

impl Guard {
    /// Logs what was restored, and what could not be.
    pub(super) fn take(&mut self, repairs: Repairs, now: Instant) -> Finding {
        let done = repairs
            .done
            .into_iter()
            .map(|done| format!("{done}, by somebody else; it is put back"));
        let failed = repairs
            .failed
            .into_iter()
            .map(|failed| format!("{failed}; the agent retries every second"));
        let sentences: Vec<String> = failed.chain(done).collect();
        self.told.retain(|_, told| now.duration_since(*told) < NEWS);
        for sentence in sentences.iter().chain(&repairs.outside) {
            if self.told.contains_key(sentence) {
                debug!("{sentence}");
            } else {
                warn!("{sentence}");
                self.told.insert(sentence.clone(), now);
            }
        }
        let was_disturbed = std::mem::replace(&mut self.is_disturbed, !sentences.is_empty());
        match sentences.into_iter().next() {
            Some(first) => Finding::Disturbed(first),
            None if was_disturbed => Finding::Over,
            None => Finding::Quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repairs(done: &[&str], failed: &[&str]) -> Repairs {
        let owned = |all: &[&str]| all.iter().map(|&one| one.to_owned()).collect();
        Repairs { done: owned(done), failed: owned(failed), outside: None }
    }

    #[test]
    fn an_agent_whose_programs_are_detached_again_and_again_is_not_ready_until_that_is_over() {
        let (mut guard, now) = (Guard::default(), Instant::now());
        let quiet = || repairs(&[], &[]);
        assert_eq!(guard.take(quiet(), now), Finding::Quiet);
        for _ in 0..3 {
            let detached = repairs(&["the program of connect4 was detached"], &[]);
            let Finding::Disturbed(why) = guard.take(detached, now) else { panic!("not said") };
            assert!(why.starts_with("the program of connect4 was detached, by "), "{why}");
        }
        assert_eq!(guard.take(quiet(), now), Finding::Over);
        assert_eq!(guard.take(quiet(), now), Finding::Quiet);
    }

    #[test]
    fn what_cannot_be_put_back_comes_first() {
        let mut guard = Guard::default();
        let both = repairs(&["the pin of the map x was gone"], &["connect4 cannot be put back"]);
        let Finding::Disturbed(why) = guard.take(both, Instant::now()) else { panic!("not said") };
        assert!(why.starts_with("connect4 cannot be put back; "), "{why}");
    }

    #[test]
    fn what_clients_outside_lack_says_nothing_about_the_hooks() {
        let (mut guard, now) = (Guard::default(), Instant::now());
        let lack = "no room".to_owned();
        let found = guard.take(Repairs { outside: Some(lack.clone()), ..repairs(&[], &[]) }, now);
        assert_eq!((found, guard.told.get(&lack)), (Finding::Quiet, Some(&now)));
    }

    #[test]
    fn a_sentence_is_told_once_in_a_minute() {
        let (mut guard, start) = (Guard::default(), Instant::now());
        let mut told = 0;
        for second in 0..180 {
            let now = start + Duration::from_secs(second);
            guard.take(repairs(&["the program of connect4 was detached"], &[]), now);
            told += u32::from(guard.told.values().any(|told| *told == now));
            assert_eq!(guard.told.len(), 1);
        }
        assert_eq!(told, 3);
    }
}

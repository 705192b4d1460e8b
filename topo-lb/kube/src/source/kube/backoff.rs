//! Pauses between attempts.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// Longest first pause.
const FIRST: Duration = Duration::from_millis(500);
/// Longest pause before the first listing: this node has no state yet, or an old one, and the
/// network may come up later than the agent.
pub(super) const LONGEST_BEFORE_CONTACT: Duration = Duration::from_secs(3);
/// Longest pause after an answer that the server cannot serve now, unless it asks for a longer one.
pub(super) const LONGEST_OVERLOADED: Duration = Duration::from_secs(8);
/// Longest pause of all, even if the server asks for a longer one.
pub(super) const LONGEST: Duration = Duration::from_secs(30);

/// Pause after `failures` in a row, from 1: at most half a second, doubled after each further
/// failure, and at most `longest`. `random` chooses from the upper half of it, so that agents that
/// failed together do not retry together.
pub(super) fn pause(failures: u32, longest: Duration, random: u64) -> Duration {
    let doublings = failures.saturating_sub(1).min(16);
    let longest = FIRST.saturating_mul(1 << doublings).min(longest);
    // The upper 32 bits suffice, and are exact in floating point.
    let share = f64::from(u32::try_from(random >> 32).unwrap_or(u32::MAX)) / f64::from(u32::MAX);
    longest / 2 + (longest / 2).mul_f64(share)
}

/// The longer of `pause` and what the server `asked` for, which counts up to [`LONGEST`].
pub(super) fn at_least(asked: Option<Duration>, pause: Duration) -> Duration {
    pause.max(asked.unwrap_or_default().min(LONGEST))
}

/// A random number, from the random keys of the standard library's hasher.
pub(super) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_half_a_minute() {
        let longest: Vec<_> = (1..=9).map(|failures| pause(failures, LONGEST, u64::MAX)).collect();
        let millis = [500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000];
        assert_eq!(longest, millis.map(Duration::from_millis));
        for longest in [LONGEST, LONGEST_BEFORE_CONTACT] {
            assert_eq!(pause(u32::MAX, longest, u64::MAX), longest);
        }
    }

    #[test]
    fn a_server_is_left_alone_for_as_long_as_it_asks_but_not_for_ever() {
        let second = Duration::from_secs(1);
        assert_eq!(at_least(Some(second * 20), second), second * 20);
        assert_eq!(at_least(Some(second * 3_600), second), LONGEST);
        assert_eq!(at_least(Some(Duration::ZERO), second), second);
        assert_eq!(at_least(None, second), second);
    }

    #[test]
    fn half_of_a_pause_is_chance_and_half_is_not() {
        for failures in 1..20 {
            let (least, most) = (pause(failures, LONGEST, 0), pause(failures, LONGEST, u64::MAX));
            assert_eq!(least * 2, most);
            let half = pause(failures, LONGEST, u64::MAX / 2);
            assert!(
                (least..=most).contains(&half) && half.abs_diff(least + least / 2).as_micros() < 10
            );
        }
    }

    #[test]
    fn two_agents_hardly_ever_pause_alike() {
        let pauses: std::collections::HashSet<_> =
            (0..100).map(|_| pause(7, LONGEST, random())).collect();
        assert!(pauses.len() > 90, "{} of 100 differ", pauses.len());
    }
}

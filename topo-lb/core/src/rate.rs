//! A token bucket. Pure: callers pass the time.

use std::time::{Duration, Instant};

/// Allows a burst, then one per interval.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    interval: Duration,
    burst: u32,
    /// When the bucket is full again.
    paid_until: Instant,
}

impl Rate {
    /// A full bucket at `now`.
    #[must_use]
    pub fn new(burst: u32, interval: Duration, now: Instant) -> Self {
        Self { interval, burst, paid_until: now }
    }

    /// When the next one may pass: `now` or later.
    #[must_use]
    pub fn next(&self, now: Instant) -> Instant {
        let credit = self.interval * self.burst.saturating_sub(1);
        self.paid_until.checked_sub(credit).map_or(now, |next| next.max(now))
    }

    /// Takes a token, if there is one.
    pub fn take(&mut self, now: Instant) -> bool {
        if self.next(now) > now {
            return false;
        }
        self.paid_until = self.paid_until.max(now) + self.interval;
        true
    }

    /// Whether the bucket is full.
    #[must_use]
    pub fn is_full(&self, now: Instant) -> bool {
        self.paid_until <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_and_then_one_at_each_interval() {
        let start = Instant::now();
        let second = Duration::from_secs(1);
        let mut rate = Rate::new(3, second, start);
        assert_eq!([0; 5].map(|_| rate.take(start)), [true, true, true, false, false]);
        assert!(!rate.take(start + second / 2));
        assert!(rate.take(start + second));
        assert!(!rate.take(start + second));
        let later = start + second * 100;
        assert_eq!([0; 4].map(|_| rate.take(later)), [true, true, true, false]);
    }
}

//! A histogram that one task writes while others read it, without a lock.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counts durations in buckets with fixed upper bounds, in seconds, ascending.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [f64],
    /// One more than bounds: the last bucket has no upper bound.
    buckets: Box<[AtomicU64]>,
    /// Sum of all durations, in nanoseconds.
    sum: AtomicU64,
}

/// The content of a histogram at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// Upper bound in seconds and count of each bucket, not cumulative; the last bound is infinite.
    pub buckets: Vec<(f64, u64)>,
    /// Sum of all buckets.
    pub count: u64,
    /// Sum of all durations, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// An empty histogram.
    #[must_use]
    pub fn new(bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0) }
    }

    /// Counts one duration.
    pub fn observe(&self, took: Duration) {
        let seconds = took.as_secs_f64();
        let place = self.bounds.partition_point(|bound| *bound < seconds);
        self.buckets[place].fetch_add(1, Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.sum.fetch_add(nanos, Relaxed);
    }

    /// Its content. A concurrent observation may be in the buckets and not yet in the sum.
    #[must_use]
    pub fn read(&self) -> Reading {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<_> =
            bounds.zip(self.buckets.iter().map(|count| count.load(Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = Duration::from_nanos(self.sum.load(Relaxed)).as_secs_f64();
        Reading { buckets, count, sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_where_it_is_no_longer_than_the_bound() {
        let histogram = Histogram::new(&[0.001, 0.01]);
        for micros in [500, 1_000, 1_001, 10_000, 20_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let reading = histogram.read();
        let counts: Vec<u64> = reading.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 2, 1]);
        assert_eq!(reading.count, 5);
        assert!((reading.sum - 0.032_501).abs() < 1e-9, "{}", reading.sum);
    }
}

//! Which of several API servers is asked first. Pure: the caller passes the time.

use std::time::{Duration, Instant};

/// The servers in the order in which they are asked.
#[derive(Debug)]
pub(super) struct Order {
    /// How many there are; at least one.
    servers: usize,
    /// How long another server serves before the first one is asked again.
    back: Duration,
    /// Which one answered last.
    now: usize,
    /// When the first one was asked last.
    asked: Instant,
}

impl Order {
    pub(super) const fn new(servers: usize, back: Duration, now: Instant) -> Self {
        Self { servers, back, now: 0, asked: now }
    }

    /// The servers for a request: the one that answered last, then all others in their order. The first
    /// server comes first again once in that time.
    pub(super) fn next(&mut self, now: Instant) -> (usize, Vec<usize>) {
        let is_due = now.saturating_duration_since(self.asked) >= self.back;
        let first = if is_due { 0 } else { self.now };
        if first == 0 {
            self.asked = now;
        }
        (first, (0..self.servers).filter(|it| *it != first).collect())
    }

    /// Records that a server answered. Returns whether another one did before.
    pub(super) fn answered(&mut self, by: usize) -> bool {
        std::mem::replace(&mut self.now, by) != by
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_server_that_answered_last_comes_first_and_the_first_one_again_after_a_minute() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut order = Order::new(3, MINUTE, start);
        assert_eq!(order.next(at(0)), (0, vec![1, 2]));
        assert!(!order.answered(0));
        assert!(order.answered(2), "the first two did not answer");
        assert_eq!(order.next(at(1)), (2, vec![0, 1]));
        assert!(!order.answered(2));
        assert_eq!(order.next(at(60)), (0, vec![1, 2]), "is it back?");
        assert!(!order.answered(2));
        assert_eq!(order.next(at(61)), (2, vec![0, 1]), "it was not");
        assert_eq!(order.next(at(119)), (2, vec![0, 1]));
        assert_eq!(order.next(at(120)), (0, vec![1, 2]));
        assert!(order.answered(0), "it is");
        assert_eq!(order.next(at(121)), (0, vec![1, 2]));
    }

    #[test]
    fn one_server_is_always_asked() {
        let start = Instant::now();
        let mut order = Order::new(1, MINUTE, start);
        assert_eq!(order.next(start + Duration::from_secs(1_000)), (0, vec![]));
        assert!(!order.answered(0));
    }
}

//! The last hour: what moved in each interval of five seconds. Pure.

use std::collections::VecDeque;

use serde::Serialize;

use crate::commands::top::Rate;

/// The length of an interval, in seconds.
pub(super) const INTERVAL: u64 = 5;
/// An hour of them.
const KEPT: usize = 3600 / INTERVAL as usize;

/// The mean rates of one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    /// When it begins, in seconds since 1970.
    pub(super) at: u64,
    #[serde(flatten)]
    pub(super) rate: Rate,
    /// Whether the rates are unknown, as a node was away that had traffic.
    #[serde(rename = "isGap", skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_gap: bool,
    /// How many seconds the rates are known for.
    #[serde(skip)]
    seconds: f64,
}

/// The intervals of the last hour with a look, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct History(VecDeque<Point>);

impl History {
    /// Adds rates that held for so many seconds before `now`, in seconds since 1970; `None`: they are unknown.
    pub(super) fn add(&mut self, now: u64, seconds: f64, rate: Option<&Rate>) {
        let at = now - now % INTERVAL;
        match (self.0.back_mut(), rate) {
            // A clock that was set back does not go back here.
            (Some(last), Some(rate)) if last.at >= at => {
                let old = last.seconds / (last.seconds + seconds);
                last.rate = last.rate.mixed(old, rate, 1.0 - old);
                last.seconds += seconds;
                last.is_gap = false;
            }
            (Some(last), None) if last.at >= at => {}
            (None, None) => {}
            (_, Some(rate)) => {
                self.0.push_back(Point { at, rate: rate.clone(), is_gap: false, seconds });
            }
            (Some(_), None) => {
                let rate = Rate::default();
                self.0.push_back(Point { at, rate, is_gap: true, seconds: 0.0 });
            }
        }
        let begin = at.saturating_sub(KEPT as u64 * INTERVAL);
        while self.0.len() > KEPT || self.0.front().is_some_and(|first| first.at < begin) {
            self.0.pop_front();
        }
    }

    /// The points from this moment on.
    pub(super) fn since(&self, at: u64) -> impl Iterator<Item = &Point> {
        self.0.iter().skip(self.0.partition_point(|point| point.at < at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(refused: f64) -> Rate {
        Rate { refused, ..Rate::default() }
    }

    #[test]
    fn looks_of_one_interval_are_one_point_with_their_mean() {
        let mut history = History::default();
        history.add(100, 1.0, Some(&rate(8.0)));
        history.add(104, 3.0, Some(&rate(4.0)));
        history.add(105, 2.0, Some(&rate(7.0)));
        let all: Vec<_> = history.since(0).map(|it| (it.at, it.rate.refused)).collect();
        assert_eq!(all, [(100, 5.0), (105, 7.0)]);
        assert_eq!(history.since(101).count(), 1);
    }

    #[test]
    fn an_interval_without_a_complete_look_is_a_gap() {
        let mut history = History::default();
        history.add(95, 2.0, None);
        history.add(100, 2.0, Some(&rate(8.0)));
        history.add(102, 2.0, None);
        history.add(105, 2.0, None);
        history.add(107, 2.0, None);
        history.add(110, 2.0, None);
        history.add(112, 2.0, Some(&rate(6.0)));
        let all: Vec<_> = history.since(0).map(|it| (it.at, it.rate.refused, it.is_gap)).collect();
        assert_eq!(all, [(100, 8.0, false), (105, 0.0, true), (110, 6.0, false)]);
    }

    #[test]
    fn an_hour_is_kept_and_a_clock_may_be_set_back() {
        let mut history = History::default();
        for second in (0..9_000).step_by(2) {
            history.add(second, 2.0, Some(&rate(1.0)));
        }
        assert_eq!(history.since(0).count(), KEPT);
        history.add(10, 2.0, Some(&rate(1.0)));
        assert_eq!(history.since(0).count(), KEPT);
        history.add(90_000, 2.0, Some(&rate(1.0)));
        assert_eq!(history.since(0).count(), 1, "what is older than an hour is gone");
    }
}

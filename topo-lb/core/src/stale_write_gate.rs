//! How fresh the agent's state is, and whether it may write that state to the maps.

use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use crate::cluster::Freshness;

/// The freshness of the state, and whether writes are held back.
#[derive(Debug, Default)]
pub struct StaleWriteGate {
    freshness: Freshness,
    begun: bool,
    /// The kernel holds what the last agent wrote, which is no older than any saved state: nothing
    /// is written until a source is live.
    held: bool,
}

impl StaleWriteGate {
    /// Call it before the first write. If the programs are `attached`, a state that is not live
    /// must not overwrite what the last agent left in the kernel.
    pub fn begin(&mut self, attached: bool) {
        self.begun = true;
        let Freshness::AsOf(moment) = self.freshness else { return };
        self.held = attached;
        let what = if attached {
            "what the last agent left in the kernel is no older, and stays as it is until then"
        } else {
            "connections go by it until then"
        };
        warn!(
            "no API server has told all of the cluster yet: starting from the state as it was {} ago; \
             {what}",
            ago(moment)
        );
    }

    /// Records how fresh the state is from now on; logs changes after [`begin`](Self::begin).
    pub fn observe(&mut self, freshness: Freshness) {
        let before = std::mem::replace(&mut self.freshness, freshness);
        self.held &= freshness != Freshness::Live;
        match (before, freshness) {
            _ if !self.begun => {}
            (Freshness::AsOf(_), Freshness::Live) => {
                info!("the API server tells all of the cluster again");
            }
            (Freshness::Live, Freshness::AsOf(moment)) => warn!(
                "the API server was last heard of {} ago: connections go by what was known then",
                ago(moment)
            ),
            _ => {}
        }
    }

    /// How fresh the state is.
    #[must_use]
    pub const fn freshness(&self) -> Freshness {
        self.freshness
    }

    /// Whether the maps may be written.
    #[must_use]
    pub const fn may_write(&self) -> bool {
        !self.held
    }
}

/// The time since `moment`, as text.
fn ago(moment: SystemTime) -> String {
    in_words(moment.elapsed().unwrap_or_default())
}

/// A span of time in its two largest units.
#[must_use]
pub fn in_words(span: Duration) -> String {
    let seconds = span.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest} s"),
        (0, 0, _) => format!("{minutes} min {rest} s"),
        (0, _, _) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_written_over_what_is_attached_until_the_source_is_live() {
        let mut write_gate = StaleWriteGate::default();
        write_gate.observe(Freshness::AsOf(SystemTime::now()));
        write_gate.begin(true);
        assert!(!write_gate.may_write());
        write_gate.observe(Freshness::AsOf(SystemTime::now()));
        assert!(!write_gate.may_write());
        write_gate.observe(Freshness::Live);
        assert!(write_gate.may_write());
        write_gate.observe(Freshness::AsOf(SystemTime::now()));
        assert!(write_gate.may_write(), "what came since is as good as what is attached");
    }

    #[test]
    fn what_was_saved_is_written_where_nothing_is_attached() {
        let mut write_gate = StaleWriteGate::default();
        write_gate.observe(Freshness::AsOf(SystemTime::now()));
        write_gate.begin(false);
        assert!(write_gate.may_write());
    }

    #[test]
    fn a_live_source_may_write_over_what_is_attached() {
        let mut write_gate = StaleWriteGate::default();
        write_gate.begin(true);
        assert!(write_gate.may_write());
    }

    #[test]
    fn spans_are_told_in_their_two_largest_units() {
        let told = [0, 59, 61, 3_600 + 120, 2 * 86_400 + 3 * 3_600 + 59]
            .map(|seconds| in_words(Duration::from_secs(seconds)));
        assert_eq!(told, ["0 s", "59 s", "1 min 1 s", "1 h 2 min", "2 d 3 h"]);
    }
}

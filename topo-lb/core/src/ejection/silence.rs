//! Whether a node is an island: its API server has been silent for too long. Pure: callers pass the time.

use std::time::{Duration, Instant, SystemTime};

use crate::cluster::Freshness;

/// How long the API server has been silent. A watch without news is no silence: its connection is there.
#[derive(Debug)]
pub struct Silence {
    /// How long it may be; `None`: for ever.
    limit: Option<Duration>,
    /// When this agent began to listen. What it was told before, it was not told itself.
    begun: Instant,
    /// When the API server was last heard of; `None`: all required watches are open.
    since: Option<Instant>,
}

impl Silence {
    /// For an agent that begins to listen now. `limit`: `None` if its node is never to be an island.
    #[must_use]
    pub const fn new(limit: Option<Duration>, now: Instant) -> Self {
        Self { limit, begun: now, since: None }
    }

    /// Records how fresh the source's state is; `wall` is the same moment by the clock that it uses.
    pub fn observe(&mut self, freshness: Freshness, now: Instant, wall: SystemTime) {
        self.since = match freshness {
            Freshness::Live => None,
            Freshness::AsOf(then) => {
                // A clock that was set back or forth meanwhile makes an island later or sooner, never
                // before the watches have been gone for their grace.
                let age = wall.duration_since(then).unwrap_or_default();
                let heard = now.checked_sub(age).unwrap_or(self.begun).max(self.begun);
                Some(self.since.map_or(heard, |since| since.max(heard)))
            }
        };
    }

    /// Records that the API server said something of an object, before all watches are open again.
    pub fn hear(&mut self, now: Instant) {
        if let Some(since) = &mut self.since {
            *since = now;
        }
    }

    /// Since when the API server is silent, if that has lasted too long: the node is an island.
    #[must_use]
    pub fn island(&self, now: Instant) -> Option<Instant> {
        let (since, limit) = self.since.zip(self.limit)?;
        (now.saturating_duration_since(since) >= limit).then_some(since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const SECOND: Duration = Duration::from_secs(1);

    /// A listener of an hour ago, and now.
    fn silence(limit: Option<Duration>) -> (Silence, Instant) {
        let begun = Instant::now();
        (Silence::new(limit, begun), begun + 60 * LIMIT)
    }

    fn as_of(age: Duration) -> (Freshness, SystemTime) {
        let wall = SystemTime::UNIX_EPOCH + 1_000_000 * SECOND;
        (Freshness::AsOf(wall - age), wall)
    }

    #[test]
    fn a_node_is_an_island_as_long_after_the_last_word_as_it_is_told_and_until_the_first_one() {
        let (mut silence, now) = silence(Some(LIMIT));
        assert_eq!(silence.island(now + 60 * LIMIT), None, "an idle watch is open");
        let (freshness, wall) = as_of(10 * SECOND);
        silence.observe(freshness, now, wall);
        let heard = now - 10 * SECOND;
        assert_eq!(silence.island(heard + LIMIT - SECOND), None);
        assert_eq!(silence.island(heard + LIMIT), Some(heard));
        // One of the watches tells of an object before the others are open.
        let later = heard + 10 * LIMIT;
        silence.hear(later);
        assert_eq!(silence.island(later), None);
        silence.observe(freshness, later, wall);
        assert_eq!(silence.island(later + LIMIT), Some(later), "it was heard after that");
        silence.observe(Freshness::Live, later, wall);
        assert_eq!(silence.island(later + 60 * LIMIT), None);
        silence.hear(later);
        assert_eq!(silence.island(later + 60 * LIMIT), None);
    }

    #[test]
    fn an_agent_that_starts_from_an_old_state_waits_as_long_as_any() {
        let (mut silence, now) = (Silence::new(Some(LIMIT), Instant::now()), Instant::now());
        let (freshness, wall) = as_of(1_000 * LIMIT);
        silence.observe(freshness, now, wall);
        assert_eq!(silence.island(now), None);
        assert!(silence.island(now + LIMIT).is_some());
    }

    #[test]
    fn clocks_that_jump_and_nodes_that_are_to_be_none_make_no_island() {
        let (mut one, now) = silence(Some(LIMIT));
        let (freshness, wall) = as_of(Duration::ZERO);
        one.observe(freshness, now, wall - 1_000 * SECOND);
        assert_eq!(one.island(now), None, "the clock was set back");
        let (mut never, now) = silence(None);
        never.observe(freshness, now, wall);
        assert_eq!(never.island(now + 1_000 * LIMIT), None);
    }
}

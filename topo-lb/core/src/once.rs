//! Logs a thing once, and again only after it was over: a problem that lasts must not fill the log.

use std::collections::BTreeSet;

/// What was logged and is not over. Pure: the caller logs. `Once<()>` is of a single thing.
#[derive(Clone, Debug)]
pub struct Once<T = ()>(BTreeSet<T>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Once<T> {
    /// Nothing is logged yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(BTreeSet::new())
    }

    /// How many things were logged and are not over.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Everything is over.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl<T: Ord> Once<T> {
    /// Whether to log this now: it was not logged since it was last over.
    pub fn begins(&mut self, what: T) -> bool {
        self.0.insert(what)
    }

    /// This is over. Returns whether it was logged.
    pub fn ends(&mut self, what: &T) -> bool {
        self.0.remove(what)
    }

    /// Ends all of which `is_over` is true, and returns them.
    pub fn end_those(&mut self, is_over: impl Fn(&T) -> bool) -> BTreeSet<T> {
        self.0.extract_if(.., |what| is_over(what)).collect()
    }

    /// Whether this was logged and is not over.
    #[must_use]
    pub fn has(&self, what: &T) -> bool {
        self.0.contains(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_logged_once_and_again_after_it_was_over() {
        let mut once = Once::new();
        assert!(once.begins("full") && !once.begins("full") && once.begins("away"));
        assert!(once.ends(&"full") && !once.ends(&"full") && once.begins("full"));
        let over = once.end_those(|what| *what == "away");
        assert_eq!((over, once.count(), once.has(&"full")), (["away"].into(), 1, true));
        once.clear();
        assert!(once.begins("full"));
    }
}

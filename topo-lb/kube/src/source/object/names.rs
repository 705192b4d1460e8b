//! Shares repeated strings: names of nodes, zones, namespaces, ports.

use std::collections::HashSet;
use std::sync::Arc;

/// The known strings. Those that nothing else holds are dropped in sweeps.
#[derive(Debug)]
pub struct Names {
    known: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl Default for Names {
    fn default() -> Self {
        Self { known: HashSet::new(), sweep_at: Self::SWEEP }
    }
}

impl Names {
    /// Strings at which the first sweep happens.
    const SWEEP: usize = 4096;

    /// The shared copy of `text`.
    pub fn share(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|name| Arc::strong_count(name) > 1);
            self.sweep_at = Self::SWEEP.max(self.known.len() * 2);
        }
        let new: Arc<str> = text.into();
        self.known.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_one() {
        let mut names = Names::default();
        let (one, two) = (names.share("cn-east-1"), names.share("cn-east-1"));
        assert!(Arc::ptr_eq(&one, &two));
    }

    #[test]
    fn strings_that_nobody_holds_are_forgotten() {
        let mut names = Names::default();
        let held = names.share("held");
        for n in 0..10 * Names::SWEEP {
            names.share(&n.to_string());
        }
        assert!(names.known.len() <= Names::SWEEP + 1, "{} strings held", names.known.len());
        assert!(Arc::ptr_eq(&held, &names.share("held")));
    }
}

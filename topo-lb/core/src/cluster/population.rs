//! How many Nodes carry each value of each label: `topo-lb.io/spill: auto` counts clients by it.

use std::collections::HashMap;
use std::sync::Arc;

use super::labels::Labels;

/// Counts of Nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Population {
    /// By label and value; none is 0.
    by_label: HashMap<Arc<str>, HashMap<Arc<str>, usize>>,
    /// How often a Node came, went or changed its labels.
    pub(super) changes: u64,
}

impl Population {
    /// How many Nodes carry the label with this value.
    pub(super) fn count(&self, key: &str, value: &str) -> usize {
        self.by_label.get(key).and_then(|of| of.get(value)).copied().unwrap_or(0)
    }

    /// Takes the labels of a Node as they were, and as they are; none for a Node that is not there.
    pub(super) fn change(&mut self, before: Option<&Labels>, after: Option<&Labels>) {
        self.changes += 1;
        for (key, value) in before.into_iter().flat_map(Labels::shared) {
            let Some(of) = self.by_label.get_mut(key) else { continue };
            match of.get_mut(value) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(of.remove(value)),
            }
            if of.is_empty() {
                self.by_label.remove(key);
            }
        }
        for (key, value) in after.into_iter().flat_map(Labels::shared) {
            let of = self.by_label.entry(Arc::clone(key)).or_default();
            *of.entry(Arc::clone(value)).or_default() += 1;
        }
    }
}

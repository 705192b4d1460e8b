//! How many Services an evacuation empties on this node, kept up to date as Services are decided anew.

use std::collections::BTreeMap;

use crate::cluster::ServiceId;
use crate::topology::evacuated::Evacuated;

/// The Services with endpoints in what is evacuated.
#[derive(Debug, Default)]
pub struct Evacuees {
    of: BTreeMap<ServiceId, Vec<Evacuated>>,
    counts: BTreeMap<Evacuated, usize>,
}

impl Evacuees {
    /// This holds for a Service now, and nothing else.
    pub fn set(&mut self, id: &ServiceId, now: Vec<Evacuated>) {
        for gone in self.of.remove(id).into_iter().flatten() {
            if let Some(count) = self.counts.get_mut(&gone) {
                *count -= 1;
            }
        }
        if now.is_empty() {
            if self.of.is_empty() {
                self.counts.clear();
            }
            return;
        }
        for one in &now {
            *self.counts.entry(one.clone()).or_default() += 1;
        }
        self.of.insert(id.clone(), now);
    }

    /// How many Services there are.
    #[must_use]
    pub fn count(&self, of: &Evacuated) -> usize {
        self.counts.get(of).copied().unwrap_or_default()
    }
}

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
            let left = self.count(&gone).saturating_sub(1);
            self.counts.remove(&gone);
            self.counts.extend((left > 0).then_some((gone, left)));
        }
        if now.is_empty() {
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

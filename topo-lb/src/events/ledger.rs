//! What is known of every Service that is a concern, so that only news are told.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::concern::{Concern, News, Refusal, news, no_room};
use crate::cluster::ServiceId;
use crate::plan::Shortage;
use crate::reconcile::Reconciler;

/// Services that are a concern now. Most are none, and take no room here.
#[derive(Debug, Default)]
pub struct Ledger {
    concerns: BTreeMap<ServiceId, Concern>,
    left_out: BTreeSet<ServiceId>,
}

impl Ledger {
    /// Looks at Services that were computed anew, those closer that may be a concern; what is news of
    /// them.
    pub fn look(
        &mut self,
        reconciler: &Reconciler,
        services: BTreeMap<ServiceId, bool>,
    ) -> Vec<News> {
        let mut all = Vec::new();
        for (id, is_concern) in services {
            let before = self.concerns.remove(&id);
            if !is_concern {
                continue;
            }
            let after = Concern::of(reconciler.state(), reconciler.node(), reconciler.scope(), &id);
            all.extend(news(&id, &before.unwrap_or_default(), &after));
            if !after.is_none() {
                self.concerns.insert(id, after);
            }
        }
        all
    }

    /// Notes which Services have no room; what is news of that.
    pub fn leave_out(&mut self, left_out: &BTreeMap<ServiceId, Shortage>) -> Vec<News> {
        let new = left_out.keys().filter(|id| !self.left_out.contains(*id));
        let all = new.map(no_room).collect();
        self.left_out = left_out.keys().cloned().collect();
        all
    }

    /// Service ports that refuse connections, and why.
    #[must_use]
    pub fn reasons(&self) -> BTreeMap<Arc<str>, Refusal> {
        let refused = self.concerns.values().flat_map(|concern| &concern.refused);
        refused.map(|(name, refused)| (Arc::clone(name), refused.why)).collect()
    }
}

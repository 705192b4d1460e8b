//! The pure part of an agent (state, topology, plan), for measurements: it writes nothing.

use std::sync::Arc;

use topo_lb_core::cluster::Update;
use topo_lb_core::plan::{Capacity, Installed};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::Scope;

/// The state of one node's agent, and what it would have installed.
pub struct PureAgent {
    reconciler: Reconciler,
    installed: Installed,
}

impl PureAgent {
    /// The agent of this node, before any update.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self {
            reconciler: Reconciler::new(Arc::from(node), Scope::All, false),
            installed: Installed::new(Capacity::default()),
        }
    }

    /// Applies all updates, then plans until nothing is left to do. Returns the number of writes.
    pub fn follow(&mut self, updates: impl IntoIterator<Item = Update>) -> usize {
        let mut writes = 0;
        for update in updates {
            self.reconciler.observe(update);
        }
        while !self.reconciler.settled() {
            let plan = self.reconciler.plan(&self.installed);
            writes += plan.steps.len();
            for step in &plan.steps {
                self.installed.record(step);
            }
            self.reconciler.carried_out(&plan, &self.installed);
        }
        writes
    }
}

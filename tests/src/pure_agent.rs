//! The pure part of an agent (state, topology, plan) by itself, for those who measure it: nothing is
//! written anywhere.

use std::sync::Arc;

use topo_lb::cluster::Update;
use topo_lb::plan::{Capacity, Installed};
use topo_lb::reconcile::Reconciler;
use topo_lb::topology::Scope;

/// What an agent of one node knows, and what it would have installed.
pub struct PureAgent {
    reconciler: Reconciler,
    installed: Installed,
}

impl PureAgent {
    /// The agent of this node, which has received no update yet.
    #[must_use]
    pub fn new(node: &str) -> Self {
        Self {
            reconciler: Reconciler::new(Arc::from(node), Scope::All, false),
            installed: Installed::new(Capacity::default()),
        }
    }

    /// Takes all of this in, then plans until there is nothing left to do.
    pub fn follow(&mut self, updates: impl IntoIterator<Item = Update>) {
        for update in updates {
            self.reconciler.observe(update);
        }
        while !self.reconciler.settled() {
            let plan = self.reconciler.plan(&self.installed);
            for step in &plan.steps {
                self.installed.record(step);
            }
            self.reconciler.carried_out(&plan);
        }
    }
}

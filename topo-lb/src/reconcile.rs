//! From what a source says to a plan: the pure middle of the agent.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::{ServiceId, State, Update};
use crate::plan::{Desired, Installed, Plan, diff};
use crate::topology::{self, Scope};

/// What the agent of one node knows and wants.
pub struct Reconciler {
    node: Arc<str>,
    scope: Scope,
    state: State,
    desired: Desired,
    /// Services whose desired state is to be computed anew.
    changed: BTreeSet<ServiceId>,
    /// Services whose installed state may differ from the desired one.
    unsettled: BTreeSet<ServiceId>,
    /// Services that did not fit into the maps; each plan tries them again.
    left_out: BTreeSet<ServiceId>,
}

impl Reconciler {
    /// For this node, with or without tc, knowing nothing yet.
    pub fn new(node: Arc<str>, scope: Scope, with_tc: bool) -> Self {
        Self {
            node,
            scope,
            state: State::default(),
            desired: Desired::new(with_tc),
            changed: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            left_out: BTreeSet::new(),
        }
    }

    /// What the cluster looks like.
    pub const fn state(&self) -> &State {
        &self.state
    }

    /// Takes in what a source says.
    pub fn observe(&mut self, update: Update) {
        self.changed.extend(self.state.apply(update, &self.node).services);
    }

    /// Whether there is nothing to plan.
    pub fn settled(&self) -> bool {
        self.changed.is_empty() && self.unsettled.is_empty()
    }

    /// Plans everything, also the removal of what is installed and desired by nobody.
    pub fn plan_all(&mut self, installed: &Installed) -> Plan {
        self.recompute();
        self.unsettled.extend(self.desired.services().cloned());
        self.unsettled.extend(diff::orphans(&self.desired, installed));
        self.plan(installed)
    }

    /// Plans what changed since the last plan that was carried out.
    pub fn plan(&mut self, installed: &Installed) -> Plan {
        self.recompute();
        self.unsettled.append(&mut self.left_out);
        diff::plan(&self.desired, installed, &self.unsettled)
    }

    /// Notes that a plan was carried out whole.
    pub fn carried_out(&mut self, plan: &Plan) {
        self.unsettled.clear();
        self.left_out.clone_from(&plan.left_out);
    }

    fn recompute(&mut self) {
        for id in std::mem::take(&mut self.changed) {
            let routes = topology::routes(&self.state, &self.node, self.scope, &id);
            self.unsettled.extend(self.desired.set(id, routes));
        }
    }
}

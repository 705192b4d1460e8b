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

    /// Has the next plan look at everything, also at what is installed and desired by nobody.
    pub fn expect_all(&mut self, installed: &Installed) {
        self.recompute();
        self.unsettled.extend(self.desired.services().cloned());
        self.unsettled.extend(diff::orphans(&self.desired, installed));
    }

    /// Plans what changed since the last plan that was carried out.
    pub fn plan(&mut self, installed: &Installed) -> Plan {
        self.recompute();
        self.unsettled.append(&mut self.left_out);
        diff::plan(&self.desired, installed, &self.unsettled)
    }

    /// Notes that a plan was carried out whole. If it made room, what it left out is to be planned
    /// again at once: while it was made, what it takes away was still there.
    pub fn carried_out(&mut self, plan: &Plan) {
        self.unsettled.clear();
        self.left_out.clone_from(&plan.left_out);
        if plan.makes_room() {
            self.unsettled.append(&mut self.left_out);
        }
    }

    /// Services that have no room in the maps, by the last plan.
    pub const fn left_out(&self) -> &BTreeSet<ServiceId> {
        &self.left_out
    }

    fn recompute(&mut self) {
        for id in std::mem::take(&mut self.changed) {
            let routes = topology::routes(&self.state, &self.node, self.scope, &id);
            self.unsettled.extend(self.desired.set(id, routes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::service::PolicySources;
    use crate::cluster::{Protocol, Service, ServicePort};
    use crate::datapath::commit::commit;
    use crate::datapath::memory::MemoryStore;
    use crate::datapath::store::Store as _;
    use crate::plan::Capacity;

    fn id(name: &str) -> ServiceId {
        ServiceId { namespace: "default".into(), name: name.into() }
    }

    fn service(name: &str, host: u8) -> Service {
        Service {
            id: id(name),
            cluster_ips: vec![[10, 96, 0, host].into()],
            ports: vec![ServicePort { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
            policy: PolicySources::default(),
            internal_local: false,
            external_local: false,
            affinity_seconds: None,
            skipped: None,
        }
    }

    /// As the agent does; the names of the Services that are then installed.
    fn settle(reconciler: &mut Reconciler, store: &mut MemoryStore) -> Vec<String> {
        let mut installed = store.installed().unwrap();
        let mut plans = 0;
        while !reconciler.settled() {
            let plan = reconciler.plan(&installed);
            commit(&plan, store, &mut installed).unwrap();
            reconciler.carried_out(&plan);
            plans += 1;
            assert!(plans < 10, "it never settles");
        }
        store.names().values().cloned().collect()
    }

    #[test]
    fn what_has_no_room_gets_the_room_that_the_same_change_makes() {
        let mut store = MemoryStore::new(Capacity {
            services: 1,
            slots: 0,
            members: 0,
            flows: 0,
            connections: 0,
        });
        let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
        reconciler.observe(Update::Service(service("a", 1)));
        assert_eq!(settle(&mut reconciler, &mut store), ["default/a:http"]);

        reconciler.observe(Update::ServiceGone(id("a")));
        reconciler.observe(Update::Service(service("b", 2)));
        assert_eq!(settle(&mut reconciler, &mut store), ["default/b:http"]);

        reconciler.observe(Update::Service(service("c", 3)));
        assert_eq!(settle(&mut reconciler, &mut store), ["default/b:http"]);
        assert!(reconciler.left_out().contains(&id("c")));
    }
}

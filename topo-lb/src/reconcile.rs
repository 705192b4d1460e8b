//! From what a source says to a plan: the pure middle of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::cluster::{Frontend, KnownNodes, ServiceId, State, Update};
use crate::plan::{Desired, Gone, Installed, Lack, Meanwhile, Plan, Ration, WhenFull, diff, gone};
use crate::topology::{self, Route, Scope, Verdict};

/// What the agent of one node knows and wants.
pub struct Reconciler {
    node: Arc<str>,
    scope: Scope,
    /// Shared with those who look at it: a change copies what somebody still looks at.
    state: Arc<State>,
    desired: Desired,
    /// Services whose desired state is to be computed anew.
    changed: BTreeSet<ServiceId>,
    /// Services whose installed state may differ from the desired one.
    unsettled: BTreeSet<ServiceId>,
    /// Services that lack room in the maps; each plan tries them again.
    unprogrammed: BTreeMap<ServiceId, Lack>,
    ration: Ration,
    /// Services that were computed anew since somebody asked.
    looked: BTreeMap<ServiceId, Look>,
    /// Services whose decision reads labels of other Nodes. While only this node's Node is known, they
    /// wait: what is installed for them stays.
    readers: BTreeSet<ServiceId>,
}

/// A Service that was computed anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Whether there may be something that people should know of it: it refuses connections, or its
    /// policy breaks a rule. Without it nothing else is filled in.
    pub is_concern: bool,
    /// Its ports that the maps serve by what was planned before, and by what.
    pub served: BTreeMap<Arc<str>, Served>,
    /// The maps have an entry for it by what was planned before.
    pub is_installed: bool,
}

/// By what the maps serve a Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A key of its policy has matched.
    ByKey,
    /// No key has: it had no policy then, or one without keys.
    WithoutKey,
}

impl Reconciler {
    /// For this node, knowing nothing yet. `lists_all`: the kernel is told the members of every
    /// Service, and not only of those whose UDP flows or affinity need them.
    pub fn new(node: Arc<str>, scope: Scope, lists_all: bool) -> Self {
        let first = u64::from(crc32fast::hash(node.as_bytes()));
        Self {
            ration: Ration::new(WhenFull::Leave, first),
            node,
            scope,
            state: Arc::default(),
            desired: Desired::new(lists_all),
            changed: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            unprogrammed: BTreeMap::new(),
            looked: BTreeMap::new(),
            readers: BTreeSet::new(),
        }
    }

    /// With another rule for Services that have no room.
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.ration = self.ration.when_full(when_full);
        self
    }

    /// The node that all of this is for.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Which Services are handled.
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// What the cluster looks like.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What the cluster looks like now, to be looked at elsewhere and later. Costs a copy of the
    /// indexes if a change comes while it is held.
    pub fn snapshot(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }

    /// Takes in what a source says; whether it changes anything for any Service.
    pub fn observe(&mut self, update: Update) -> bool {
        let state = Arc::make_mut(&mut self.state);
        let waited = state.known_nodes() == KnownNodes::Own;
        let mut changed = state.apply(update, &self.node).services;
        if waited && state.known_nodes() == KnownNodes::All {
            changed.extend(self.readers.iter().cloned());
        }
        let is_change = !changed.is_empty();
        self.changed.extend(changed);
        is_change
    }

    /// A Service whose decision reads a label of other Nodes, and the label; `None` where the Node of
    /// this node is enough.
    pub fn reads_other_nodes(&self) -> Option<(&ServiceId, &str)> {
        // One that has just changed may read no more, and is among them until the next plan.
        self.readers.iter().find_map(|id| {
            let label = topology::reads_other_nodes(&self.state, &self.node, self.scope, id)?;
            Some((id, label))
        })
    }

    /// Looks at every Service for what it reads of other Nodes, before anything is planned.
    pub fn survey(&mut self) {
        let reads = |id: &&ServiceId| {
            topology::reads_other_nodes(&self.state, &self.node, self.scope, id).is_some()
        };
        self.readers = self.state.services().filter(reads).cloned().collect();
    }

    /// Whether there is nothing to plan.
    pub fn settled(&self) -> bool {
        self.changed.is_empty() && self.unsettled.is_empty()
    }

    /// Has the next plan look at everything, also at what is installed and desired by nobody.
    pub fn expect_all(&mut self, installed: &Installed) {
        self.recompute(installed);
        self.unsettled.extend(self.desired.services().cloned());
        let mut orphans = diff::orphans(&self.desired, installed);
        orphans.retain(|id| !self.waits(id));
        self.unsettled.extend(orphans);
    }

    /// Plans what changed since the last plan that was carried out.
    pub fn plan(&mut self, installed: &Installed) -> Plan {
        self.recompute(installed);
        self.unsettled.extend(std::mem::take(&mut self.unprogrammed).into_keys());
        diff::plan(&self.desired, installed, &self.unsettled, &mut self.ration)
    }

    /// Notes that a plan was carried out whole. If it made room, what it left out is to be planned
    /// again at once: while it was made, what it takes away was still there.
    pub fn carried_out(&mut self, plan: &Plan) {
        self.unsettled.clear();
        self.unprogrammed.clone_from(&plan.unprogrammed);
        if plan.makes_room() {
            self.unsettled.extend(std::mem::take(&mut self.unprogrammed).into_keys());
        }
    }

    /// Which endpoints stop serving their Service ports by a plan that [`plan`](Self::plan) made for
    /// `installed`: not those that only others are preferred to.
    pub fn gone(&self, plan: &Plan, installed: &Installed) -> Vec<Gone> {
        gone::gone(plan, installed, |id, frontend| {
            let Frontend { address, port, protocol } = *frontend;
            topology::serving(&self.state, id, (address, port, protocol))
        })
    }

    /// Services that lack room in the maps, by the last plan.
    pub const fn unprogrammed(&self) -> &BTreeMap<ServiceId, Lack> {
        &self.unprogrammed
    }

    /// Service ports, by name, whose connections are refused as their Services lack room.
    pub fn refused_for_room(&self) -> impl Iterator<Item = &Arc<str>> {
        let refused =
            self.unprogrammed.iter().filter(|(_, lack)| lack.meanwhile == Meanwhile::Refused);
        refused.flat_map(|(id, _)| self.desired.targets(id)).map(|target| &target.name)
    }

    /// The Services that were computed anew since this was asked last.
    pub fn take_looked(&mut self) -> BTreeMap<ServiceId, Look> {
        std::mem::take(&mut self.looked)
    }

    /// How many Services wait for the labels of other Nodes.
    pub fn waiting(&self) -> usize {
        match self.state.known_nodes() {
            KnownNodes::Own => self.readers.len(),
            KnownNodes::All => 0,
        }
    }

    fn waits(&self, id: &ServiceId) -> bool {
        self.state.known_nodes() == KnownNodes::Own && self.readers.contains(id)
    }

    fn recompute(&mut self, installed: &Installed) {
        for id in std::mem::take(&mut self.changed) {
            let reads = topology::reads_other_nodes(&self.state, &self.node, self.scope, &id);
            if reads.is_some() {
                self.readers.insert(id.clone());
            } else {
                self.readers.remove(&id);
            }
            // Decided on labels that are not known, connections could be refused.
            if self.waits(&id) {
                continue;
            }
            let routes = topology::routes(&self.state, &self.node, self.scope, &id);
            let is_concern = routes.iter().any(|route| route.verdict == Verdict::Refuse)
                || self.state.service(&id).is_some_and(topology::breaks_a_rule);
            let look = self.looked.entry(id.clone()).or_default();
            look.is_concern = is_concern;
            if is_concern {
                look.is_installed |= note_installed(&routes, installed, &mut look.served);
            }
            self.unsettled.extend(self.desired.set(id, routes));
            self.ration.renew();
        }
    }
}

/// Whether the maps have an entry for any of `routes`; adds those that serve to `served`.
fn note_installed(
    routes: &[Route],
    installed: &Installed,
    served: &mut BTreeMap<Arc<str>, Served>,
) -> bool {
    let mut any = false;
    for route in routes {
        for &address in &route.frontends {
            let frontend = Frontend { address, port: route.port, protocol: route.protocol };
            let placed = installed.get(&frontend).filter(|placed| {
                // Another Service may have had the address.
                installed.indexes().name(placed.entry.index) == Some(&route.name)
            });
            let Some(placed) = placed else { continue };
            any = true;
            if placed.entry.count > 0 {
                let by = match placed.entry.tier {
                    Some(_) => Served::ByKey,
                    None => Served::WithoutKey,
                };
                served.insert(Arc::clone(&route.name), by);
            }
        }
    }
    any
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::{
        Change, Endpoint, Labels, Node, Place, Port, Protocol, Service, Slice, SliceId,
    };
    use crate::datapath::maps::commit::commit;
    use crate::datapath::maps::memory::MemoryStore;
    use crate::datapath::maps::store::Store as _;
    use crate::plan::{Capacity, Meanwhile, Shortage};

    fn id(name: &str) -> ServiceId {
        ServiceId { namespace: "default".into(), name: name.into() }
    }

    fn service(name: &str, host: u8) -> Service {
        Service {
            id: id(name),
            cluster_ips: vec![[10, 96, 0, host].into()],
            ports: vec![Port { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
            ..Service::default()
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
    fn a_row_that_is_computed_anew_and_has_not_changed_is_in_memory_once() {
        let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
        let mut installed = Installed::new(Capacity::default());
        reconciler.observe(Update::Service(Change::Applied(service("a", 1))));
        let plan = reconciler.plan(&installed);
        plan.steps.iter().for_each(|step| installed.record(step));
        reconciler.carried_out(&plan);
        let node = Node { name: "n".into(), labels: Labels::default() };
        assert!(reconciler.observe(Update::Node(Change::Applied(node))));
        assert_eq!(reconciler.plan(&installed), Plan::default());
        let (_, placed) = installed.placed().next().expect("a Service is published");
        let desired = reconciler.desired.targets(&id("a"))[0].entry(0).row;
        assert!(Arc::ptr_eq(&placed.entry.row, &desired));
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
        reconciler.observe(Update::Service(Change::Applied(service("a", 1))));
        assert_eq!(settle(&mut reconciler, &mut store), ["default/a:http"]);

        reconciler.observe(Update::Service(Change::Deleted(id("a"))));
        reconciler.observe(Update::Service(Change::Applied(service("b", 2))));
        assert_eq!(settle(&mut reconciler, &mut store), ["default/b:http"]);

        reconciler.observe(Update::Service(Change::Applied(service("c", 3))));
        assert_eq!(settle(&mut reconciler, &mut store), ["default/b:http"]);
        let lack = Lack { of: Shortage::Services, meanwhile: Meanwhile::KubeProxy };
        assert_eq!(reconciler.unprogrammed().get(&id("c")), Some(&lack));
    }

    const ROOM: Capacity = Capacity { services: 8, slots: 8, members: 0, flows: 0, connections: 0 };

    fn node(name: &str) -> Update {
        let labels = [("rack".into(), "1".into())].into();
        Update::Node(Change::Applied(Node { name: name.into(), labels }))
    }

    fn keyed(keys: &str) -> Update {
        let mut service = service("a", 1);
        Arc::make_mut(&mut service.policy).topology_keys = Some(keys.into());
        Update::Service(Change::Applied(service))
    }

    /// The endpoints of Service `a` on these nodes.
    fn slice(nodes: &[&str]) -> Update {
        let endpoint =
            |(at, node): (u8, &&str)| Endpoint::new([10, 1, 1, at].into(), Place::on(*node));
        Update::Slice(Change::Applied(Slice {
            id: SliceId { namespace: "default".into(), name: "a-1".into() },
            service: Some(id("a")),
            ports: vec![Port { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
            endpoints: (1..).zip(nodes).map(endpoint).collect(),
            triggered: None,
        }))
    }

    /// How many endpoints are installed for every frontend.
    fn counts(store: &mut MemoryStore) -> Vec<usize> {
        let installed = store.installed().unwrap();
        installed.placed().map(|(_, placed)| placed.entry.row.len()).collect()
    }

    #[test]
    fn a_service_that_reads_other_nodes_stays_as_it_was_until_all_are_known() {
        let mut store = MemoryStore::new(ROOM);
        let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
        for update in
            [Update::KnownNodes(KnownNodes::Own), node("n"), keyed("*"), slice(&["n", "m", "l"])]
        {
            reconciler.observe(update);
        }
        settle(&mut reconciler, &mut store);
        assert_eq!((reconciler.reads_other_nodes(), counts(&mut store)), (None, vec![3]));

        // By the labels that are known only the endpoint on this node would be left.
        reconciler.observe(keyed("rack"));
        settle(&mut reconciler, &mut store);
        assert_eq!(counts(&mut store), [3]);
        assert_eq!(reconciler.reads_other_nodes(), Some((&id("a"), "rack")));
        assert_eq!(reconciler.waiting(), 1);
        // Half of them is not all.
        reconciler.observe(node("m"));
        settle(&mut reconciler, &mut store);
        assert_eq!(counts(&mut store), [3]);
        let other = Node { name: "l".into(), labels: Labels::default() };
        reconciler.observe(Update::Node(Change::Applied(other)));
        assert!(reconciler.observe(Update::KnownNodes(KnownNodes::All)));
        settle(&mut reconciler, &mut store);
        assert_eq!((reconciler.waiting(), counts(&mut store)), (0, vec![2]));

        // Back: nothing changes with the labels that are forgotten.
        reconciler.observe(keyed("*"));
        settle(&mut reconciler, &mut store);
        assert_eq!((reconciler.reads_other_nodes(), counts(&mut store)), (None, vec![3]));
        reconciler.observe(Update::KnownNodes(KnownNodes::Own));
        reconciler.observe(Update::Node(Change::Listed(Vec::new(), vec!["n".into()])));
        settle(&mut reconciler, &mut store);
        assert_eq!((reconciler.waiting(), counts(&mut store)), (0, vec![3]));
    }

    #[test]
    fn one_service_that_reads_no_more_does_not_hide_another() {
        let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
        for update in [node("n"), node("m"), keyed("rack"), slice(&["n", "m"])] {
            reconciler.observe(update);
        }
        let b = id("b");
        let mut other = service("b", 2);
        Arc::make_mut(&mut other.policy).topology_keys = Some("rack".into());
        reconciler.observe(Update::Service(Change::Applied(other)));
        let Update::Slice(Change::Applied(mut its)) = slice(&["m"]) else { unreachable!() };
        (its.id.name, its.service) = ("b-1".into(), Some(b.clone()));
        reconciler.observe(Update::Slice(Change::Applied(its)));
        reconciler.survey();
        // No plan yet: while the maps may not be written there is none.
        reconciler.observe(Update::Service(Change::Deleted(id("a"))));
        assert_eq!(reconciler.reads_other_nodes(), Some((&b, "rack")));
    }

    #[test]
    fn what_the_last_agent_installed_for_a_service_that_waits_is_not_taken_away() {
        let mut store = MemoryStore::new(ROOM);
        let mut before = Reconciler::new("n".into(), Scope::All, false);
        for update in [node("n"), node("m"), keyed("rack"), slice(&["n", "m"])] {
            before.observe(update);
        }
        settle(&mut before, &mut store);
        assert_eq!(counts(&mut store), [2]);
        let mut after = Reconciler::new("n".into(), Scope::All, false);
        for update in
            [Update::KnownNodes(KnownNodes::Own), node("n"), keyed("rack"), slice(&["n", "m"])]
        {
            after.observe(update);
        }
        after.expect_all(&store.installed().unwrap());
        settle(&mut after, &mut store);
        assert_eq!(counts(&mut store), [2]);
        after.survey();
        assert!(after.reads_other_nodes().is_some());
    }
}

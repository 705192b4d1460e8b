//! From a source's updates to a plan: the pure middle of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use rayon::prelude::*;

use crate::cluster::{Clients, Frontend, KnownNodes, ServiceId, State, Update};
use crate::dns::lead::Listeners;
use crate::evacuees::Evacuees;
use crate::homecoming::Way;
use crate::plan::desired::Target;
use crate::plan::{Desired, Gone, Installed, Lack, Meanwhile, Plan, Ration, WhenFull, diff, gone};
use crate::topology::evacuated::Evacuated;
use crate::topology::exposed::Exposing;
use crate::topology::size::{Excess, Most, excess};
use crate::topology::{self, Route, Scope, Verdict};

/// Services that are decided before any of them is taken in: it bounds the memory that decisions take.
const BATCH: usize = 4096;
/// Fewer Services than these are decided by one thread: another one takes longer to start than it saves.
const WORTH_A_THREAD: usize = 512;
/// Endpoints of Service ports that are planned at once, or one Service that has more: so those that change
/// meanwhile need not wait for all the others.
const PORTION: usize = 65_536;

/// State, desired routes and open changes of one node's agent.
pub struct Reconciler {
    node: Arc<str>,
    scope: Scope,
    /// Which frontends besides ClusterIPs are handled; `None`: none.
    exposing: Option<Exposing>,
    /// Where the resolver of this node listens, if it does.
    resolver: Listeners,
    /// Shared with readers: a change copies the state if a reader holds it.
    state: Arc<State>,
    desired: Desired,
    /// Services with an outdated desired state.
    changed: BTreeSet<ServiceId>,
    /// Services with an installed state that may differ from the desired one.
    unsettled: BTreeSet<ServiceId>,
    /// Remembers the Services that lack room in the maps.
    ration: Ration,
    /// Services recomputed since the last [`take_recomputed`](Self::take_recomputed).
    recomputed: BTreeMap<ServiceId, Recomputed>,
    /// Services that read labels of other Nodes. While these are unknown, what is installed stays.
    readers: BTreeSet<ServiceId>,
    /// When the share of an endpoint grows next, in seconds since 1970, of Services with a slow start; and whether one
    /// gets less than others now.
    growing: BTreeMap<ServiceId, (i64, bool)>,
    evacuees: Evacuees,
}

/// What a recomputed Service was and is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recomputed {
    /// It refuses connections, or its policy breaks a rule. If false, the other fields are empty.
    pub is_concern: bool,
    /// Its ports that the maps serve by the previous plan, and by what.
    pub served: BTreeMap<Arc<str>, Served>,
    /// By the previous plan, the maps have an entry for it.
    pub is_installed: bool,
}

/// By what the maps serve a Service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A key of its policy matched.
    ByKey,
    /// No key matched: it had no policy then, or one without keys.
    WithoutKey,
}

impl Reconciler {
    /// An empty reconciler for this node. `lists_all`: the maps get the members of every Service,
    /// not only of those that need them for UDP flows or session affinity.
    pub fn new(node: Arc<str>, scope: Scope, lists_all: bool) -> Self {
        let first = u64::from(crc32fast::hash(node.as_bytes()));
        Self {
            ration: Ration::new(WhenFull::Leave, first),
            node,
            scope,
            exposing: None,
            resolver: Listeners::default(),
            state: Arc::default(),
            desired: Desired::new(lists_all),
            changed: BTreeSet::new(),
            unsettled: BTreeSet::new(),
            recomputed: BTreeMap::new(),
            readers: BTreeSet::new(),
            growing: BTreeMap::new(),
            evacuees: Evacuees::default(),
        }
    }

    /// Sets the rule for Services that have no room in the maps.
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.ration = self.ration.when_full(when_full);
        self
    }

    /// Whether new Services without room get a few endpoints, as no kube-proxy takes them.
    #[must_use]
    pub fn narrowing(mut self, narrows: bool) -> Self {
        self.ration = self.ration.narrowing(narrows);
        self
    }

    /// Handles these frontends besides ClusterIPs.
    #[must_use]
    pub fn exposing(self, exposing: Option<Exposing>) -> Self {
        Self { exposing, ..self }
    }

    /// Whether Pods of this node may be steered; without this, they may.
    #[must_use]
    pub fn steering(mut self, steers: bool) -> Self {
        if !steers {
            Arc::make_mut(&mut self.state).steer_no_pods();
        }
        self
    }

    /// The name of this node.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Which Services are handled.
    pub const fn scope(&self) -> Scope {
        self.scope
    }

    /// Which frontends besides ClusterIPs are handled.
    pub fn exposed(&self) -> Exposing {
        self.exposing.clone().unwrap_or_default()
    }

    /// The cluster's objects.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The state for a reader elsewhere. A change while it is held copies the indexes.
    pub fn snapshot(&self) -> Arc<State> {
        Arc::clone(&self.state)
    }

    /// Applies an update. Returns whether it may change any Service's routes.
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

    /// Ends evacuations by a clock, in seconds since 1970, and has the shares of young endpoints grow. Returns whether
    /// that may change any Service's routes.
    pub fn pass(&mut self, now: i64) -> bool {
        let (before, mut said) = (self.state.now(), self.state.evacuations().peekable());
        // Without any of them, time changes nothing.
        let is_idle = said.peek().is_none() && !self.state.has_slow_starts();
        if is_idle || before == Some(now) {
            return false;
        }
        let turns = |text: &str| topology::evacuation::turns(text, &self.node, before, now);
        let mut ids = match said.any(turns) {
            true => self.state.asking(|policy| policy.evacuate.as_deref().is_some_and(turns)),
            false => Vec::new(),
        };
        drop(said);
        let is_set_back = before.is_some_and(|before| now < before);
        let grow = self.growing.iter().filter(|(_, (at, _))| *at <= now || is_set_back);
        ids.extend(grow.map(|(id, _)| id.clone()));
        self.observe(Update::Time(now));
        let is_change = !ids.is_empty();
        self.changed.extend(ids);
        is_change
    }

    /// How many Services have endpoints that get less than their share because of a slow start.
    pub fn starting_slowly(&self) -> usize {
        self.growing.values().filter(|(_, starts)| *starts).count()
    }

    /// How many objects evacuate something on this node now; and what that is, with the number of Services that have
    /// endpoints there, as of the last plan.
    pub fn evacuations(&self) -> (usize, BTreeMap<Evacuated, usize>) {
        let (mut objects, mut services) = (0, BTreeMap::new());
        for text in self.state.evacuations() {
            let all = topology::evacuated::holding(text, &self.node, self.state.now());
            objects += usize::from(!all.is_empty());
            for one in all {
                services.entry(one).or_insert_with_key(|it| self.evacuees.count(it));
            }
        }
        (objects, services)
    }

    /// Has the cluster DNS Service lead to the resolver of this node; without an address, to its own
    /// endpoints. Returns whether this is a change.
    pub fn lead_dns_to(&mut self, resolver: Listeners) -> bool {
        let is_change = self.resolver != resolver;
        if is_change && self.state.service(&resolver.service).is_some() {
            self.changed.insert(resolver.service.clone());
        }
        self.resolver = resolver;
        is_change
    }

    /// The Services that the next plan decides anew.
    pub fn changed(&self) -> impl Iterator<Item = &ServiceId> {
        self.changed.iter()
    }

    /// Whether the next plan decides a Service anew.
    pub fn is_changed(&self, id: &ServiceId) -> bool {
        self.changed.contains(id)
    }

    /// A Service that reads a label of other Nodes, and the label; `None` if there is none.
    pub fn reads_other_nodes(&self) -> Option<(&ServiceId, &str)> {
        // A Service that just changed stays among the readers until the next plan, so check each.
        self.readers.iter().find_map(|id| {
            let label = topology::reads_other_nodes(&self.state, &self.node, self.scope, id)?;
            Some((id, label))
        })
    }

    /// Finds the Services that read labels of other Nodes, before the first plan.
    pub fn survey(&mut self) {
        let ids: Vec<ServiceId> = self.state.services().cloned().collect();
        let reads: Vec<bool> =
            ids.par_iter().with_min_len(WORTH_A_THREAD).map(|id| self.reads(id)).collect();
        self.readers =
            ids.into_iter().zip(reads).filter(|(_, reads)| *reads).map(|it| it.0).collect();
    }

    /// Whether there is nothing to plan.
    pub fn settled(&self) -> bool {
        self.changed.is_empty() && self.unsettled.is_empty()
    }

    /// Whether no plan has to follow before others of the changed Services are planned.
    pub fn is_between_portions(&self) -> bool {
        self.unsettled.is_empty()
    }

    /// Makes the next plan cover everything, including installed entries that are not desired.
    pub fn expect_all(&mut self, installed: &Installed) {
        let changed = mem::take(&mut self.changed).into_iter().collect();
        self.recompute(changed, installed);
        self.unsettled.extend(self.desired.services().cloned());
        let mut orphans = diff::orphans(&self.desired, installed);
        orphans.retain(|id| !self.waits(id));
        self.unsettled.extend(orphans);
    }

    /// Plans a portion of what changed since the last plan that was carried out, and what found no room and
    /// may find it now.
    pub fn plan(&mut self, installed: &Installed) -> Plan {
        if self.is_between_portions() {
            let portion = self.take_portion();
            self.recompute(portion, installed);
        }
        self.unsettled.extend(self.ration.due(&self.desired, installed));
        diff::plan(&self.desired, installed, &self.unsettled, &mut self.ration)
    }

    /// Records that a plan was carried out whole; `installed` is the state after it. The Services to which
    /// it left no room are planned again if it freed what they lack.
    pub fn carried_out(&mut self, plan: &Plan, installed: &Installed) {
        self.ration.carried_out(mem::take(&mut self.unsettled), plan);
        self.unsettled = self.ration.due(&self.desired, installed);
    }

    /// Whether a Service that lacks room waits for what `plan` frees after a grace period.
    pub fn awaits(&self, plan: &Plan) -> bool {
        self.ration.awaits(plan)
    }

    /// Endpoints that no longer serve their Service ports after `plan`, which [`plan`](Self::plan)
    /// made for `installed`. Endpoints that still serve but are not chosen are not among them.
    pub fn gone(&self, plan: &Plan, installed: &Installed) -> Vec<Gone> {
        gone::gone(plan, installed, |id, frontend| topology::serving(&self.state, id, frontend))
    }

    /// Whether a frontend is a ClusterIP.
    pub fn is_cluster_ip(&self, frontend: &Frontend) -> bool {
        self.desired.is_cluster_ip(frontend)
    }

    /// Where connections go to Services whose connections may return to a nearer tier, or might before; of those
    /// that were recomputed since the last call.
    pub fn take_returning(&mut self) -> Vec<(ServiceId, Vec<Way>)> {
        let reset = self.desired.take_returning();
        let ways = |id: ServiceId| {
            let targets = self.desired.targets(&id).iter();
            let ways = targets.filter_map(|target| self.way(&id, target)).collect();
            (id, ways)
        };
        reset.into_iter().map(ways).collect()
    }

    /// Where connections to a Service go now, of ports whose connections can return to a nearer tier; whether or not
    /// it asks for that. Decides anew: some 10 µs for a Service with few endpoints.
    pub fn ways(&self, id: &ServiceId) -> Vec<Way> {
        if self.waits(id) {
            return Vec::new();
        }
        let (state, node, exposing) = (&self.state, &self.node, self.exposing.as_ref());
        let routes = topology::returning_routes(state, node, self.scope, exposing, id).into_iter();
        let targets = routes.filter_map(|route| Target::new(route, false, false));
        targets.filter_map(|target| self.way(id, &target)).collect()
    }

    fn way(&self, id: &ServiceId, target: &Target) -> Option<Way> {
        let (row, homeward) = target.homeward()?;
        Some(Way {
            name: Arc::clone(&target.name),
            after: homeward.after,
            rank: homeward.rank,
            frontends: self.desired.owned(id, target).collect(),
            row: Arc::clone(row),
            wide: Arc::clone(&homeward.wide),
        })
    }

    /// As long as it is the same, so is what [`source_ranges`](Self::source_ranges) gives.
    pub const fn ranges_revision(&self) -> u64 {
        self.desired.ranges_revision()
    }

    /// The load balancer IPs that not everybody may dial, and who may.
    pub fn source_ranges(&self) -> impl Iterator<Item = (Frontend, &Arc<[IpNet]>)> {
        self.desired.source_ranges()
    }

    /// Services that lack room in the maps.
    pub const fn unprogrammed(&self) -> &BTreeMap<ServiceId, Lack> {
        self.ration.unprogrammed()
    }

    /// Service ports, by name, that refuse connections because their Services lack room.
    pub fn refused_for_room(&self) -> impl Iterator<Item = &Arc<str>> {
        let refused =
            self.unprogrammed().iter().filter(|(_, lack)| lack.meanwhile == Meanwhile::Refused);
        refused.flat_map(|(id, _)| self.desired.targets(id)).map(|target| &target.name)
    }

    /// Whether clients of this node may not dial an endpoint directly over TCP.
    pub fn refuses_dials_of(&self, endpoint: SocketAddr) -> bool {
        self.desired.refuses_dials_of(endpoint)
    }

    /// Service ports with room, by name, of which clients may not dial every endpoint directly.
    pub fn refusing_direct(&self) -> impl Iterator<Item = &Arc<str>> {
        let has_room = |id: &ServiceId| !self.unprogrammed().contains_key(id);
        let all = self.desired.refusing_direct();
        all.filter(move |(id, _)| has_room(id)).map(|(_, name)| name)
    }

    /// Returns the Services recomputed since the last call.
    pub fn take_recomputed(&mut self) -> BTreeMap<ServiceId, Recomputed> {
        mem::take(&mut self.recomputed)
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

    /// Whether the decision for this Service reads labels of other Nodes.
    fn reads(&self, id: &ServiceId) -> bool {
        topology::reads_other_nodes(&self.state, &self.node, self.scope, id).is_some()
    }

    fn decide(&self, id: &ServiceId, most: Most) -> Decided {
        let (state, node, exposing) = (&self.state, &self.node, self.exposing.as_ref());
        let undecided = Decided {
            reads: false,
            routes: None,
            grows: None,
            is_concern: false,
            evacuated: vec![],
        };
        if let Some(excess) = excess(state, node, self.scope, exposing, most, id) {
            return Decided { routes: Some(Err(excess)), ..undecided };
        }
        let reads = self.reads(id);
        // A decision without these labels could refuse connections.
        if reads && self.state.known_nodes() == KnownNodes::Own {
            return Decided { reads, ..undecided };
        }
        let mut routes = topology::routes(state, node, self.scope, exposing, id);
        if *id == self.resolver.service {
            self.resolver.lead(&mut routes);
        }
        // To have no endpoint here is an intended state with `externalTrafficPolicy: Local`, and for packets of others.
        let is_concern = routes.iter().any(|route| {
            let is_for_peers = route.frontends.iter().any(|(_, it)| it.clients == Clients::Peers);
            route.verdict == Verdict::Refuse && !route.drops && !is_for_peers
        }) || topology::ignored(&self.state, id).is_some();
        Decided {
            reads,
            routes: Some(Ok(routes)),
            grows: topology::next_step(state, node, id),
            is_concern,
            evacuated: topology::evacuated::evacuated(state, node, self.scope, id),
        }
    }

    /// Takes the next changed Services to plan, the smallest first.
    fn take_portion(&mut self) -> Vec<ServiceId> {
        let changed = mem::take(&mut self.changed).into_iter();
        let mut sized: Vec<_> = changed.map(|id| (self.size(&id), id)).collect();
        sized.sort();
        let mut sum = 0;
        let is_beyond = |&(size, _): &(usize, ServiceId)| {
            let is_beyond = sum >= PORTION;
            sum += size;
            is_beyond
        };
        let count = sized.iter().position(is_beyond).unwrap_or(sized.len());
        self.changed = sized.split_off(count).into_iter().map(|(_, id)| id).collect();
        sized.into_iter().map(|(_, id)| id).collect()
    }

    /// About how many endpoints the ports of a Service have, and had before.
    fn size(&self, id: &ServiceId) -> usize {
        let slices = self.state.slices(id).map(|(_, its)| its.endpoints.len() * its.ports.len());
        slices.chain(self.desired.targets(id).iter().map(Target::size)).sum()
    }

    fn recompute(&mut self, changed: Vec<ServiceId>, installed: &Installed) {
        let most = installed.capacity().most_of_a_service();
        for batch in changed.chunks(BATCH) {
            let ids = batch.par_iter().with_min_len(WORTH_A_THREAD);
            let decided = ids.map(|id| self.decide(id, most));
            for (id, mut decided) in batch.iter().zip(decided.collect::<Vec<_>>()) {
                self.evacuees.set(id, mem::take(&mut decided.evacuated));
                self.take_in(id.clone(), decided, installed);
            }
        }
    }

    fn take_in(&mut self, id: ServiceId, decided: Decided, installed: &Installed) {
        let Decided { reads, routes, grows, is_concern, .. } = decided;
        let of_routes = routes.as_ref().and_then(|it| it.as_ref().ok());
        let starts = of_routes.is_some_and(|all| all.iter().any(|route| route.starts));
        match grows {
            Some(at) => self.growing.insert(id.clone(), (at, starts)),
            None => self.growing.remove(&id),
        };
        if reads {
            self.readers.insert(id.clone());
        } else {
            self.readers.remove(&id);
        }
        let Some(routes) = routes else { return };
        let entry = self.recomputed.entry(id.clone()).or_default();
        entry.is_concern = is_concern;
        if is_concern && let Ok(routes) = &routes {
            entry.is_installed |= note_installed(routes, installed, &mut entry.served);
        }
        let affected = match routes {
            Ok(routes) => self.desired.set(id, routes),
            Err(excess) => self.desired.leave_out(id, excess),
        };
        self.ration.renew(&affected);
        self.unsettled.extend(affected);
    }
}

/// What was decided for a Service.
struct Decided {
    /// The decision reads labels of other Nodes.
    reads: bool,
    /// `None` while it waits for these labels; an excess if it alone is too large.
    routes: Option<Result<Vec<Route>, Excess>>,
    /// When the share of an endpoint grows next.
    grows: Option<i64>,
    is_concern: bool,
    evacuated: Vec<Evacuated>,
}

/// Whether the maps have an entry for any of `routes`; adds the ports that they serve to `served`.
fn note_installed(
    routes: &[Route],
    installed: &Installed,
    served: &mut BTreeMap<Arc<str>, Served>,
) -> bool {
    let mut any = false;
    for route in routes {
        for (_, frontend) in &route.frontends {
            let placed = installed.get(frontend).filter(|placed| {
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
mod tests;

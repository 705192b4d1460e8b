//! The last good objects, and which Services a change to one of them touches.

mod ripening;
mod sharers;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::ripening::LONGEST_SLOW_START;
use self::ripening::Left;
use self::sharers::Moved;
use super::ejection::Ejections;
use super::kept::{ById, Endpoints, Shared};
use super::labels::{Labels, ZONE};
use super::local_addresses::LocalAddresses;
use super::namespace::Namespace;
use super::node::{KnownNodes, Node, ZoneRegion};
use super::policies::{Above, Policies};
use super::population::Population;
use super::service::{PolicySources, Service, ServiceId};
use super::slice::{Endpoint, Slice, SliceId};
use super::topology_policy::{ClusterTopologyPolicy, PolicyId, TopologyPolicy};
use super::update::{Change, Update};

/// Services with routes that an update may have changed, including deleted ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Changed {
    /// Their namespaces and names.
    pub services: BTreeSet<ServiceId>,
    /// Empty once the update was applied.
    moved: Moved,
}

/// Who says an annotation that takes effect as time passes.
#[derive(Clone, Copy, Debug, Default)]
struct Sayers {
    /// How many Services.
    services: usize,
    /// Whether a Namespace or a policy does.
    above: bool,
}

/// The cluster's objects. Clones share them. Two states are equal if they hold the same objects, local
/// addresses, regions and ejections, in whatever order those came; known Nodes and whether Pods are steered do
/// not count.
#[derive(Clone, Debug, Default)]
pub struct State {
    services: BTreeMap<ServiceId, Arc<Service>>,
    /// Only slices that belong to a Service. The Service may be unknown.
    slices: HashSet<ById>,
    nodes: BTreeMap<Arc<str>, Labels>,
    population: Population,
    known_nodes: KnownNodes,
    /// By zone.
    regions: BTreeMap<Arc<str>, Arc<str>>,
    policies: Policies,
    /// The same by their Service, known or not; sorted by id.
    of_service: HashMap<ServiceId, SmallVec<[Arc<Endpoints>; 1]>>,
    /// Addresses of this host's devices. A ClusterIP among them is left alone.
    local: LocalAddresses,
    ejections: Ejections,
    /// Seconds since 1970.
    now: Option<i64>,
    evacuate: Sayers,
    slow_start: Sayers,
    /// All slices were listed once.
    knows_slices: bool,
    left: Left,
    shared: Shared,
    /// How many Services say `topo-lb.io/direct: steer`.
    steering: usize,
    /// No Pod of this node is steered, whatever Services say.
    steers_no_pods: bool,
    /// How many updates changed something.
    revision: u64,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.services == other.services
            && self.nodes == other.nodes
            && self.regions == other.regions
            && self.policies == other.policies
            && self.of_service == other.of_service
            && self.local == other.local
            && self.ejections == other.ejections
    }
}

impl State {
    /// Applies `update`. Returns the Services that it may change, seen from `this_node`. Objects
    /// equal to known ones change none.
    pub fn apply(&mut self, update: Update, this_node: &str) -> Changed {
        let mut changed = Changed::default();
        let population = self.population.changes;
        let is_about_policies =
            matches!(update, Update::TopologyPolicy(_) | Update::ClusterTopologyPolicy(_));
        let is_about_all = is_about_policies || matches!(update, Update::Namespace(_));
        match update {
            Update::Service(change) => {
                for id in change.gone(self.services.keys()) {
                    self.drop_service(&id, &mut changed);
                }
                for service in change.into_objects() {
                    self.put_service(service, &mut changed);
                }
            }
            Update::Slice(change) => {
                let is_complete = matches!(change, Change::Listed(..));
                for id in change.gone(self.slices.iter().map(|slice| &slice.0.id)) {
                    self.drop_slice(&id, &mut changed);
                }
                for slice in change.into_objects() {
                    self.put_slice(slice, &mut changed);
                }
                self.knows_slices |= is_complete;
            }
            Update::Node(change) => {
                let mut touched = HashSet::new();
                for name in change.gone(self.nodes.keys()) {
                    touched.extend(self.drop_node(&name));
                }
                for node in change.into_objects() {
                    touched.extend(self.put_node(node));
                }
                self.touch_nodes(&touched, this_node, &mut changed);
            }
            Update::Namespace(change) => {
                for name in self.policies.change_namespaces(change) {
                    changed.services.extend(self.in_namespace(&name).map(|it| it.id.clone()));
                }
            }
            Update::TopologyPolicy(change) => {
                let touched = self.policies.change(change, |id| !id.is_of_cluster());
                self.touch_selected(&touched, &mut changed);
            }
            Update::ClusterTopologyPolicy(change) => {
                let change = change.map(|ClusterTopologyPolicy(policy)| policy);
                let touched = self.policies.change(change, PolicyId::is_of_cluster);
                self.touch_selected(&touched, &mut changed);
            }
            Update::LocalAddresses(all) => self.put_local(all, &mut changed),
            Update::KnownNodes(known) => self.known_nodes = known,
            Update::ZoneRegion(one) => self.put_region(one, &mut changed),
            Update::Time(now) => self.now = Some(now),
            Update::Ejections(all) => self.put_ejections(all, &mut changed),
            Update::Island(island) => {
                let all = Ejections { island, ..self.ejections.clone() };
                self.put_ejections(all, &mut changed);
            }
            Update::ServiceEjections(id, of) => {
                if self.ejections.put(&id, of) && self.services.contains_key(&id) {
                    changed.services.insert(id);
                }
            }
        }
        if is_about_all {
            let said = |it: fn(&PolicySources) -> bool| self.policies.sources().any(it);
            self.evacuate.above = said(|it| it.evacuate.is_some());
            self.slow_start.above = said(|it| it.slow_start.is_some());
        }
        if self.population.changes != population {
            changed.services.extend(self.asking(PolicySources::counts_nodes));
        }
        self.touch_sharers(&mut changed);
        self.revision += u64::from(is_about_policies || !changed.services.is_empty());
        changed
    }

    /// From now on, this node steers no Pods. For an agent without flags that name any.
    pub fn steer_no_pods(&mut self) {
        self.steers_no_pods = true;
    }

    /// Whether Pods of this node may be steered.
    #[must_use]
    pub const fn steers_pods(&self) -> bool {
        !self.steers_no_pods
    }

    /// A number that grows with every change of Services and policies.
    #[must_use]
    pub const fn revision(&self) -> u64 {
        self.revision
    }

    /// Known Services by namespace and name, including skipped ones.
    pub fn services(&self) -> impl ExactSizeIterator<Item = &ServiceId> {
        self.services.keys()
    }

    /// One Service.
    #[must_use]
    pub fn service(&self, id: &ServiceId) -> Option<&Service> {
        self.services.get(id).map(|service| &**service)
    }

    /// The slices of a Service, by name.
    pub fn slices(&self, id: &ServiceId) -> impl Iterator<Item = (&SliceId, &Endpoints)> {
        self.of_service.get(id).into_iter().flatten().map(|slice| (&slice.id, &**slice))
    }

    /// All slices that belong to a Service, known or not; in no order.
    pub fn all_slices(&self) -> impl Iterator<Item = (&SliceId, &Endpoints)> {
        self.slices.iter().map(|ById(slice)| (&slice.id, &**slice))
    }

    /// What says a policy for `service` besides itself, the strongest first: TopologyPolicies, its
    /// Namespace, ClusterTopologyPolicies.
    #[must_use]
    pub fn above(&self, service: &Service) -> Vec<Above<'_>> {
        self.policies.above(service)
    }

    /// From now on, nothing but the Service itself says a policy for it.
    pub(crate) fn spare(&mut self, id: ServiceId) {
        self.policies.spared.insert(id);
    }

    /// Whether the same objects say the same policies for a Service as in another state.
    #[must_use]
    pub fn has_same_policies(&self, other: &Self, id: &ServiceId) -> bool {
        let both = self.service(id).zip(other.service(id));
        both.is_none_or(|(own, its)| self.above(own) == other.above(its))
    }

    /// The known Namespaces, by name.
    pub fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.policies.namespaces.values().map(|it| &**it)
    }

    /// The known TopologyPolicies and ClusterTopologyPolicies.
    pub fn policies(&self) -> impl Iterator<Item = &TopologyPolicy> {
        self.policies.all.values().map(|it| &**it)
    }

    /// Whether a policy is among the [`MOST_POLICIES`](super::MOST_POLICIES) of its namespace that count.
    #[must_use]
    pub fn counts(&self, policy: &TopologyPolicy) -> bool {
        self.policies.counted(&policy.id.namespace).any(|it| it.id == policy.id)
    }

    /// The Services that a policy selects, whether it counts or not.
    pub fn selected<'a>(&'a self, policy: &'a TopologyPolicy) -> impl Iterator<Item = &'a Service> {
        self.in_namespace(&policy.id.namespace)
            .filter(|service| policy.selects(service, self.policies.namespace_of(service)))
    }

    /// The Services of a namespace, or of all if it is empty.
    pub fn in_namespace<'a>(&'a self, namespace: &str) -> impl Iterator<Item = &'a Service> {
        let first = ServiceId { namespace: namespace.into(), name: Arc::default() };
        let name = Arc::clone(&first.namespace);
        let own = self.services.range(first..).map(|(_, service)| &**service);
        own.take_while(move |it| name.is_empty() || it.id.namespace == name)
    }

    fn touch_selected(&self, policies: &[Arc<TopologyPolicy>], changed: &mut Changed) {
        for policy in policies {
            changed.services.extend(self.selected(policy).map(|it| it.id.clone()));
        }
    }

    /// The known Nodes, by name.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (&str, &Labels)> {
        self.nodes.iter().map(|(name, labels)| (&**name, labels))
    }

    /// A Node's labels; `None` if the Node is unknown.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Labels> {
        self.nodes.get(name)
    }

    /// The region of a zone, as the source learnt it from one of its Nodes; `None` if it did not ask.
    #[must_use]
    pub fn region_of(&self, zone: &str) -> Option<&str> {
        self.regions.get(zone).map(|region| &**region)
    }

    /// The zones whose regions are known, by name.
    pub fn regions(&self) -> impl Iterator<Item = ZoneRegion> {
        self.regions
            .iter()
            .map(|(zone, region)| ZoneRegion { zone: zone.clone(), region: region.clone() })
    }

    /// How many Nodes carry a label with this value.
    #[must_use]
    pub fn nodes_with(&self, key: &str, value: &str) -> usize {
        self.population.count(key, value)
    }

    /// The device of this host that has an address.
    #[must_use]
    pub fn local_device(&self, address: IpAddr) -> Option<&Arc<str>> {
        self.local.by_device.get(&address)
    }

    /// The addresses of this host.
    #[must_use]
    pub const fn local_addresses(&self) -> &LocalAddresses {
        &self.local
    }

    /// What this node ejects.
    #[must_use]
    pub const fn ejections(&self) -> &Ejections {
        &self.ejections
    }

    /// What time it is, in seconds since 1970, as a source has said it last.
    #[must_use]
    pub const fn now(&self) -> Option<i64> {
        self.now
    }

    /// Whether any object says `topo-lb.io/slow-start`.
    #[must_use]
    pub const fn has_slow_starts(&self) -> bool {
        self.slow_start.services > 0 || self.slow_start.above
    }

    /// When endpoints of a Service became Ready lately, in seconds since 1970, by address. Only of Services with a
    /// slow start, and only what this agent has seen.
    pub fn ready_since(&self, id: &ServiceId) -> impl Iterator<Item = (IpAddr, i64)> {
        let slices = self.of_service.get(id).into_iter().flatten();
        slices.flat_map(|slice| slice.ready_since.iter().copied())
    }

    fn starts_slowly(&self, id: &ServiceId) -> bool {
        let says = |it: &Service| it.policy.slow_start.is_some() || self.slow_start.above;
        self.has_slow_starts() && self.service(id).is_some_and(says)
    }

    /// What Services and all objects above them say to evacuate.
    pub fn evacuations(&self) -> impl Iterator<Item = &str> {
        let own = self.services.values().map(|service| &*service.policy);
        // Most clusters have none, and are asked at every change.
        let all = |is_said| if is_said { usize::MAX } else { 0 };
        let own = own.take(all(self.evacuate.services > 0));
        let above = self.policies.sources().take(all(self.evacuate.above));
        above.chain(own).filter_map(|policy| policy.evacuate.as_deref())
    }

    fn put_ejections(&mut self, all: Ejections, changed: &mut Changed) {
        let before = std::mem::replace(&mut self.ejections, all);
        let Ejections { unseen, services, .. } = &self.ejections;
        let named = before.services.keys().chain(services.keys());
        let differ = named.filter(|id| before.services.get(id) != services.get(id));
        let differ = differ.chain(before.island_differs(&self.ejections));
        changed.services.extend(differ.filter(|id| self.services.contains_key(id)).cloned());
        if before.unseen != *unseen {
            changed.services.extend(self.asking(|policy| policy.ejection.is_some()));
        }
    }

    /// The Services for which some object says such a thing.
    pub fn asking(&self, says: impl Fn(&PolicySources) -> bool) -> Vec<ServiceId> {
        let is_said_above = self.policies.sources().any(&says);
        let asks = |service: &&Arc<Service>| {
            let above = || self.policies.above(service).iter().any(|it| says(it.policy()));
            says(&service.policy) || is_said_above && above()
        };
        self.services.values().filter(asks).map(|service| service.id.clone()).collect()
    }

    fn put_local(&mut self, all: LocalAddresses, changed: &mut Changed) {
        let before = std::mem::replace(&mut self.local, all);
        let differs =
            |address: &IpAddr| before.by_device.get(address) != self.local.by_device.get(address);
        for (id, service) in &self.services {
            // An exposed Service has frontends at addresses of this host.
            if service.exposure.is_some() || service.cluster_ips.iter().any(differs) {
                changed.services.insert(id.clone());
            }
        }
    }

    /// Which Nodes the source sends. With [`KnownNodes::Own`] an unknown Node may still exist.
    #[must_use]
    pub const fn known_nodes(&self) -> KnownNodes {
        self.known_nodes
    }

    fn put_service(&mut self, service: Service, changed: &mut Changed) {
        if self.service(&service.id) == Some(&service) {
            return;
        }
        let service = Arc::new(self.shared.service(service));
        changed.services.insert(service.id.clone());
        self.steering += usize::from(service.policy.steers());
        self.evacuate.services += usize::from(service.policy.evacuate.is_some());
        self.slow_start.services += usize::from(service.policy.slow_start.is_some());
        let old = self.services.insert(service.id.clone(), Arc::clone(&service));
        old.as_ref().inspect(|old| self.forget_said(old));
        self.note_service(old.as_deref(), Some(&service), changed);
    }

    fn drop_service(&mut self, id: &ServiceId, changed: &mut Changed) {
        if let Some((id, old)) = self.services.remove_entry(id) {
            changed.services.insert(id);
            self.forget_said(&old);
            self.note_service(Some(&old), None, changed);
        }
    }

    fn forget_said(&mut self, service: &Service) {
        self.steering -= usize::from(service.policy.steers());
        self.evacuate.services -= usize::from(service.policy.evacuate.is_some());
        self.slow_start.services -= usize::from(service.policy.slow_start.is_some());
    }

    fn put_slice(&mut self, slice: Slice, changed: &mut Changed) {
        let id = slice.id.clone();
        let triggered = ripening::triggered(&slice, self.now);
        let mut new = self.shared.slice(slice);
        let old = self.slices.get(&id).map(|slice| Arc::clone(&slice.0));
        if old.as_deref() == new.as_ref() {
            return;
        }
        changed.moved.slice(old.as_deref(), new.as_ref());
        if let (Some(new), Some(at)) = (&mut new, triggered)
            && self.starts_slowly(&new.service)
        {
            // Nobody knows since when the endpoints are Ready that the first listing brings.
            if self.knows_slices || old.is_some() {
                let before = self.of_service.get(&new.service).into_iter().flatten();
                let (before, now) = (before.map(|it| &**it), self.now.unwrap_or(at));
                new.ready_since = ripening::ready_since(new, before, &self.left, at, now);
            }
        }
        self.note_left(old.as_deref(), new.as_ref());
        self.take_slice(&id, changed);
        let Some(new) = new.map(Arc::new) else { return };
        self.touch(&new.service, changed);
        let siblings = self.of_service.entry(new.service.clone()).or_default();
        let at = siblings.partition_point(|other| other.id < new.id);
        siblings.insert(at, Arc::clone(&new));
        self.slices.insert(ById(new));
    }

    /// Remembers for a moment who has left a slice of a Service with a slow start.
    fn note_left(&mut self, old: Option<&Endpoints>, new: Option<&Endpoints>) {
        if let (Some(old), Some(now)) = (old, self.now)
            && self.starts_slowly(&old.service)
        {
            self.left.note(old, new, now);
        }
    }

    fn drop_slice(&mut self, id: &SliceId, changed: &mut Changed) {
        let old = self.take_slice(id, changed);
        self.note_left(old.as_deref(), None);
        changed.moved.slice(old.as_deref(), None);
    }

    fn take_slice(&mut self, id: &SliceId, changed: &mut Changed) -> Option<Arc<Endpoints>> {
        let ById(old) = self.slices.take(id)?;
        self.touch(&old.service, changed);
        if let Some(slices) = self.of_service.get_mut(&old.service) {
            slices.retain(|other| other.id != *id);
            if slices.is_empty() {
                self.of_service.remove(&old.service);
            }
        }
        Some(old)
    }

    /// Returns the Node's name if its labels are new.
    fn put_node(&mut self, node: Node) -> Option<Arc<str>> {
        let name = self.shared.text(node.name);
        let labels = self.shared.labels(&node.labels);
        if self.nodes.get(&name) == Some(&labels) {
            return None;
        }
        self.population.change(self.nodes.get(&name), Some(&labels));
        self.nodes.insert(Arc::clone(&name), labels);
        Some(name)
    }

    /// Returns the Node's name if it was known.
    fn drop_node(&mut self, name: &str) -> Option<Arc<str>> {
        let (name, labels) = self.nodes.remove_entry(name)?;
        self.population.change(Some(&labels), None);
        Some(name)
    }

    fn put_region(&mut self, ZoneRegion { zone, region }: ZoneRegion, changed: &mut Changed) {
        let zone = self.shared.text(zone);
        if self.regions.get(&zone) == Some(&region) {
            return;
        }
        let is_there = |one: &Endpoint| one.label(ZONE) == Some(&zone);
        self.touch_endpoints(is_there, changed);
        self.regions.insert(zone, region);
    }

    /// An unknown Service has no routes to change.
    fn touch(&self, id: &ServiceId, changed: &mut Changed) {
        if self.services.contains_key(id) {
            changed.services.insert(id.clone());
        }
    }

    /// Touches the Services with endpoints on these Nodes. Reads every endpoint once, as labels of Nodes
    /// seldom change: an index took 130 bytes for each Service of 10 endpoints.
    fn touch_nodes(&self, names: &HashSet<Arc<str>>, this_node: &str, changed: &mut Changed) {
        if names.contains(this_node) {
            changed.services.extend(self.services.keys().cloned());
            return;
        }
        if names.is_empty() {
            return;
        }
        let is_there = |one: &Endpoint| one.node().is_some_and(|node| names.contains(node));
        self.touch_endpoints(is_there, changed);
    }

    /// Touches the Services with such an endpoint.
    fn touch_endpoints(&self, is_it: impl Fn(&Endpoint) -> bool, changed: &mut Changed) {
        for ById(slice) in self.slices.iter().filter(|it| it.0.endpoints.iter().any(&is_it)) {
            self.touch(&slice.service, changed);
        }
    }
}

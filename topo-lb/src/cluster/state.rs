//! The last good objects, and which Services a change to one of them touches.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::kept::{Endpoints, Shared};
use super::labels::Labels;
use super::service::{Service, ServiceId};
use super::slice::{Endpoint, Slice, SliceId};
use super::{Change, ClusterObject, Ejections, KnownNodes, LocalAddresses, Node, Update};

/// Services with routes that an update may have changed, including deleted ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Changed {
    /// Their namespaces and names.
    pub services: BTreeSet<ServiceId>,
}

/// The cluster's objects. Clones share them. Two states are equal if they hold the same objects, local
/// addresses and ejections, in whatever order those came; known Nodes do not count.
#[derive(Clone, Debug, Default)]
pub struct State {
    services: BTreeMap<ServiceId, Arc<Service>>,
    /// Only slices that belong to a Service. The Service may be unknown.
    slices: HashMap<Arc<SliceId>, Arc<Endpoints>>,
    nodes: BTreeMap<Arc<str>, Labels>,
    known_nodes: KnownNodes,
    /// Slices by their Service, known or not; sorted.
    of_service: HashMap<ServiceId, Vec<Arc<SliceId>>>,
    /// Slices by the nodes that their endpoints name, known or not.
    on_node: HashMap<Arc<str>, HashSet<Arc<SliceId>>>,
    /// Addresses of this host's devices. A ClusterIP among them is left alone.
    local: LocalAddresses,
    ejections: Ejections,
    shared: Shared,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.services == other.services
            && self.slices == other.slices
            && self.nodes == other.nodes
            && self.of_service == other.of_service
            && self.on_node == other.on_node
            && self.local == other.local
            && self.ejections == other.ejections
    }
}

impl State {
    /// Applies `update`. Returns the Services that it may change, seen from `this_node`. Objects
    /// equal to known ones change none.
    pub fn apply(&mut self, update: Update, this_node: &str) -> Changed {
        let mut changed = Changed::default();
        match update {
            Update::Service(Change::Applied(service)) => self.put_service(service, &mut changed),
            Update::Service(Change::Deleted(id)) => self.drop_service(&id, &mut changed),
            Update::Service(Change::Listed(all, unread)) => {
                for id in missing(self.services.keys(), &all, unread) {
                    self.drop_service(&id, &mut changed);
                }
                all.into_iter().for_each(|service| self.put_service(service, &mut changed));
            }
            Update::Slice(Change::Applied(slice)) => self.put_slice(slice, &mut changed),
            Update::Slice(Change::Deleted(id)) => self.drop_slice(&id, &mut changed),
            Update::Slice(Change::Listed(all, unread)) => {
                for id in missing(self.slices.keys().map(|id| &**id), &all, unread) {
                    self.drop_slice(&id, &mut changed);
                }
                all.into_iter().for_each(|slice| self.put_slice(slice, &mut changed));
            }
            Update::Node(Change::Applied(node)) => self.put_node(node, this_node, &mut changed),
            Update::Node(Change::Deleted(name)) => self.drop_node(&name, this_node, &mut changed),
            Update::Node(Change::Listed(all, unread)) => {
                for name in missing(self.nodes.keys(), &all, unread) {
                    self.drop_node(&name, this_node, &mut changed);
                }
                all.into_iter().for_each(|node| self.put_node(node, this_node, &mut changed));
            }
            Update::LocalAddresses(all) => self.put_local(all, &mut changed),
            Update::KnownNodes(known) => self.known_nodes = known,
            Update::Ejections(all) => self.put_ejections(all, &mut changed),
        }
        changed
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
        let ids = self.of_service.get(id).into_iter().flatten();
        ids.filter_map(|id| self.slices.get(id).map(|slice| (&**id, &**slice)))
    }

    /// All slices that belong to a Service, known or not; in no order.
    pub fn all_slices(&self) -> impl Iterator<Item = (&SliceId, &Endpoints)> {
        self.slices.iter().map(|(id, slice)| (&**id, &**slice))
    }

    /// The known Nodes, by name.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, &Labels)> {
        self.nodes.iter().map(|(name, labels)| (&**name, labels))
    }

    /// A Node's labels; `None` if the Node is unknown.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&Labels> {
        self.nodes.get(name)
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

    /// What this node leaves out.
    #[must_use]
    pub const fn ejections(&self) -> &Ejections {
        &self.ejections
    }

    fn put_ejections(&mut self, all: Ejections, changed: &mut Changed) {
        let before = std::mem::replace(&mut self.ejections, all);
        let Ejections { unseen, services } = &self.ejections;
        let named = before.services.keys().chain(services.keys());
        let differ = named.filter(|id| before.services.get(id) != services.get(id));
        changed.services.extend(differ.filter(|id| self.services.contains_key(id)).cloned());
        if before.unseen != *unseen {
            let asking = self.services.iter().filter(|(_, it)| it.policy.ejection.is_some());
            changed.services.extend(asking.map(|(id, _)| id.clone()));
        }
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
        let service = self.shared.service(service);
        changed.services.insert(service.id.clone());
        self.services.insert(service.id.clone(), Arc::new(service));
    }

    fn drop_service(&mut self, id: &ServiceId, changed: &mut Changed) {
        if let Some((id, _)) = self.services.remove_entry(id) {
            changed.services.insert(id);
        }
    }

    fn put_slice(&mut self, slice: Slice, changed: &mut Changed) {
        let id = slice.id.clone();
        let new = self.shared.slice(slice);
        if self.slices.get(&id).map(|slice| &**slice) == new.as_ref() {
            return;
        }
        self.drop_slice(&id, changed);
        let Some(new) = new else { return };
        let id = Arc::new(SliceId { namespace: self.shared.text(id.namespace), ..id });
        self.touch(&new.service, changed);
        let siblings = self.of_service.entry(new.service.clone());
        let siblings = siblings.or_insert_with(|| Vec::with_capacity(1));
        if let Err(at) = siblings.binary_search(&id) {
            siblings.insert(at, Arc::clone(&id));
        }
        for node in new.endpoints.iter().filter_map(Endpoint::node) {
            self.on_node.entry(Arc::clone(node)).or_default().insert(Arc::clone(&id));
        }
        self.slices.insert(id, Arc::new(new));
    }

    fn drop_slice(&mut self, id: &SliceId, changed: &mut Changed) {
        let Some(old) = self.slices.remove(id) else { return };
        self.touch(&old.service, changed);
        if let Some(slices) = self.of_service.get_mut(&old.service) {
            slices.retain(|other| **other != *id);
            if slices.is_empty() {
                self.of_service.remove(&old.service);
            }
        }
        for node in old.endpoints.iter().filter_map(Endpoint::node) {
            if let Some(slices) = self.on_node.get_mut(node) {
                slices.remove(id);
                if slices.is_empty() {
                    self.on_node.remove(node);
                }
            }
        }
    }

    fn put_node(&mut self, node: Node, this_node: &str, changed: &mut Changed) {
        let name = self.shared.text(node.name);
        let labels = self.shared.labels(&node.labels);
        if self.nodes.get(&name) == Some(&labels) {
            return;
        }
        self.touch_node(&name, this_node, changed);
        self.nodes.insert(name, labels);
    }

    fn drop_node(&mut self, name: &str, this_node: &str, changed: &mut Changed) {
        if self.nodes.remove(name).is_some() {
            self.touch_node(name, this_node, changed);
        }
    }

    /// An unknown Service has no routes to change.
    fn touch(&self, id: &ServiceId, changed: &mut Changed) {
        if self.services.contains_key(id) {
            changed.services.insert(id.clone());
        }
    }

    fn touch_node(&self, name: &str, this_node: &str, changed: &mut Changed) {
        if name == this_node {
            changed.services.extend(self.services.keys().cloned());
            return;
        }
        for id in self.on_node.get(name).into_iter().flatten() {
            if let Some(slice) = self.slices.get(id) {
                self.touch(&slice.service, changed);
            }
        }
    }
}

/// Known objects that a listing has neither in full nor by id.
fn missing<'a, T: ClusterObject>(
    known: impl Iterator<Item = &'a T::Id>,
    all: &[T],
    unread: Vec<T::Id>,
) -> Vec<T::Id>
where
    T::Id: 'a,
{
    let there: HashSet<_> = all.iter().map(T::id).chain(&unread).collect();
    known.filter(|id| !there.contains(id)).cloned().collect()
}

//! What a source sends: changes to objects, of the cluster and of this host.

use std::collections::HashSet;
use std::sync::Arc;

use super::ejection::{Ejections, Island, ServiceEjections};
use super::local_addresses::LocalAddresses;
use super::namespace::Namespace;
use super::node::{KnownNodes, Node, ZoneRegion};
use super::service::{Service, ServiceId};
use super::slice::{Slice, SliceId};
use super::topology_policy::{ClusterTopologyPolicy, PolicyId, TopologyPolicy};

/// A kind of object that a source sends.
pub trait ClusterObject: Clone + std::fmt::Debug {
    /// The key of an object.
    type Id: Clone + std::fmt::Debug + PartialEq + Eq + std::hash::Hash;

    /// The key of this object.
    fn id(&self) -> &Self::Id;
}

impl ClusterObject for Service {
    type Id = ServiceId;

    fn id(&self) -> &ServiceId {
        &self.id
    }
}

impl ClusterObject for Slice {
    type Id = SliceId;

    fn id(&self) -> &SliceId {
        &self.id
    }
}

impl ClusterObject for Node {
    type Id = Arc<str>;

    fn id(&self) -> &Self::Id {
        &self.name
    }
}

impl ClusterObject for Namespace {
    type Id = Arc<str>;

    fn id(&self) -> &Self::Id {
        &self.name
    }
}

impl ClusterObject for TopologyPolicy {
    type Id = PolicyId;

    fn id(&self) -> &PolicyId {
        &self.id
    }
}

impl ClusterObject for ClusterTopologyPolicy {
    type Id = PolicyId;

    fn id(&self) -> &PolicyId {
        &self.0.id
    }
}

/// A change to the objects of one kind.
#[derive(Clone, Debug)]
pub enum Change<T: ClusterObject> {
    /// This object was created or changed.
    Applied(T),
    /// The object of this id was deleted.
    Deleted(T::Id),
    /// All objects that exist. Those given by id alone stay as they were: they were sent before, or
    /// cannot be read now. All others are gone.
    Listed(Vec<T>, Vec<T::Id>),
}

impl<T: ClusterObject> Change<T> {
    /// The objects that it brings.
    pub fn into_objects(self) -> Vec<T> {
        match self {
            Self::Applied(object) => vec![object],
            Self::Deleted(_) => Vec::new(),
            Self::Listed(all, _) => all,
        }
    }

    /// Which of the `known` objects are gone: one that was deleted, and those that a listing has neither in
    /// full nor by id.
    pub fn gone<'a>(&self, known: impl Iterator<Item = &'a T::Id>) -> Vec<T::Id>
    where
        T::Id: 'a,
    {
        match self {
            Self::Applied(_) => Vec::new(),
            Self::Deleted(id) => vec![id.clone()],
            Self::Listed(all, unread) => {
                let there: HashSet<_> = all.iter().map(T::id).chain(unread).collect();
                known.filter(|id| !there.contains(id)).cloned().collect()
            }
        }
    }

    /// The same change of objects of another type with the same ids.
    pub fn map<U: ClusterObject<Id = T::Id>>(self, to: impl Fn(T) -> U) -> Change<U> {
        match self {
            Self::Applied(object) => Change::Applied(to(object)),
            Self::Deleted(id) => Change::Deleted(id),
            Self::Listed(all, unread) => Change::Listed(all.into_iter().map(to).collect(), unread),
        }
    }
}

/// An update from a source.
#[derive(Clone, Debug)]
pub enum Update {
    /// A change to Services.
    Service(Change<Service>),
    /// A change to EndpointSlices.
    Slice(Change<Slice>),
    /// A change to Nodes.
    Node(Change<Node>),
    /// A change to Namespaces.
    Namespace(Change<Namespace>),
    /// A change to TopologyPolicies.
    TopologyPolicy(Change<TopologyPolicy>),
    /// A change to ClusterTopologyPolicies.
    ClusterTopologyPolicy(Change<ClusterTopologyPolicy>),
    /// All addresses that devices of this host have now, each with the name of a device.
    LocalAddresses(LocalAddresses),
    /// Which Nodes the source sends from now on. By default all.
    KnownNodes(KnownNodes),
    /// The region of a zone, as a source learns it that does not send all Nodes.
    ZoneRegion(ZoneRegion),
    /// What time it is, in seconds since 1970, UTC. Evacuations end by it: who sends it says which Services that
    /// changes.
    Time(i64),
    /// All endpoints that this node ejects.
    Ejections(Ejections),
    /// What this node ejects of one Service now; perhaps nothing.
    ServiceEjections(ServiceId, ServiceEjections),
    /// What this node finds as an island; `None`: it is none.
    Island(Option<Island>),
}

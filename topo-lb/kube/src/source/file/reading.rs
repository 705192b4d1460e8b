//! One reading of all files: all objects that identify themselves, or an error.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::document;
use super::error::{FileError, Location};
use crate::source::object::{Identity, Kind, Names, Object, ObjectError};
use crate::source::{Fault, Listing};
use topo_lb_core::cluster::client::Clients;
use topo_lb_core::cluster::unread::Unread;
use topo_lb_core::cluster::{
    Change, ClusterTopologyPolicy, Namespace, Node, PolicyId, Service, ServiceId, Slice, SliceId,
    TopologyPolicy, Update,
};
use topo_lb_core::exclusion::Pod;

#[derive(Debug, Default)]
pub(super) struct Reading {
    services: Vec<Service>,
    slices: Vec<Slice>,
    nodes: Vec<Node>,
    namespaces: Vec<Namespace>,
    policies: Vec<TopologyPolicy>,
    cluster_policies: Vec<ClusterTopologyPolicy>,
    clients: Option<Clients>,
    /// What nobody reads, if that was asked for.
    unread_parts: Vec<Unread>,
    /// Pods that identify themselves.
    pub(super) pods: Vec<Pod>,
    /// Objects that exist but cannot be read.
    unread: Vec<Identity>,
    /// Faults that affect one object each.
    pub(super) faults: Vec<Fault>,
}

impl Reading {
    /// Also looks for what nobody reads in the objects, if `with_unread` is set.
    pub(super) fn of(
        files: &[PathBuf],
        names: &mut Names,
        with_unread: bool,
    ) -> Result<Self, FileError> {
        let mut collector = Collector { with_unread, ..Collector::default() };
        for path in files {
            let bytes = fs::read(path)
                .map_err(|source| FileError::Unreadable { path: path.clone(), source })?;
            collector.take(path, &bytes, names)?;
        }
        Ok(collector.all)
    }

    pub(super) fn of_bytes(path: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        let mut collector = Collector { with_unread: true, ..Collector::default() };
        collector.take(path, bytes, &mut Names::default())?;
        Ok(collector.all)
    }

    /// Nodes and policies first and Services last, so that a reader that acts on each update never sees a
    /// Service before its policies and endpoints, or an endpoint before its Node.
    pub(super) fn updates(self) -> [Update; 6] {
        let (mut services, mut slices, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
        let (mut namespaces, mut policies, mut of_cluster) = (Vec::new(), Vec::new(), Vec::new());
        for Identity { kind, namespace, name } in self.unread {
            match kind {
                Kind::Service => services.push(ServiceId { namespace, name }),
                Kind::Slice => slices.push(SliceId { namespace, name }),
                Kind::Node => nodes.push(name),
                Kind::Namespace => namespaces.push(name),
                Kind::TopologyPolicy => policies.push(PolicyId { namespace, name }),
                Kind::ClusterTopologyPolicy => of_cluster.push(PolicyId { namespace, name }),
            }
        }
        [
            Update::Namespace(Change::Listed(self.namespaces, namespaces)),
            Update::ClusterTopologyPolicy(Change::Listed(self.cluster_policies, of_cluster)),
            Update::TopologyPolicy(Change::Listed(self.policies, policies)),
            Update::Node(Change::Listed(self.nodes, nodes)),
            Update::Slice(Change::Listed(self.slices, slices)),
            Update::Service(Change::Listed(self.services, services)),
        ]
    }
}

impl From<Reading> for Listing {
    fn from(mut reading: Reading) -> Self {
        let faults = std::mem::take(&mut reading.faults);
        let clients = reading.clients.take();
        let unread = std::mem::take(&mut reading.unread_parts);
        Self { updates: reading.updates().into(), faults, clients, unread }
    }
}

fn text<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str, FileError> {
    let text = std::str::from_utf8(bytes).map_err(|error| FileError::Encoding {
        path: path.to_owned(),
        byte: error.valid_up_to(),
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim().is_empty() {
        return Err(FileError::Empty(path.to_owned()));
    }
    Ok(text)
}

#[derive(Default)]
struct Collector {
    seen: HashMap<Identity, Location>,
    with_unread: bool,
    all: Reading,
}

impl Collector {
    fn take(&mut self, path: &Path, bytes: &[u8], names: &mut Names) -> Result<(), FileError> {
        let shared: Arc<Path> = path.into();
        document::read(path, text(path, bytes)?, names, &mut |document, item, (object, unread)| {
            if self.with_unread {
                self.all.unread_parts.append(&mut unread());
            }
            self.found(Location { path: Arc::clone(&shared), document, item }, object)
        })
    }

    /// Whether this is the first object of that identity. The second becomes a fault.
    fn is_first(&mut self, object: Identity, place: &Location) -> bool {
        let first = match self.seen.entry(object.clone()) {
            Entry::Vacant(free) => {
                free.insert(place.clone());
                return true;
            }
            Entry::Occupied(taken) => taken.into_mut(),
        };
        let sentence = format!(
            "{object} is defined twice, by {first} and by {place}: the first counts, remove one of \
             them"
        );
        self.all.faults.push(Fault { object, sentence });
        false
    }

    fn found(
        &mut self,
        place: Location,
        object: Result<Object, ObjectError>,
    ) -> Result<(), FileError> {
        let object = match object {
            Ok(object) => object,
            Err(error) => {
                let Some(fault) = Fault::unread(&error) else {
                    return Err(FileError::Object { place, error: Box::new(error) });
                };
                self.all.unread.push(fault.object.clone());
                self.all.faults.push(fault.at(place));
                return Ok(());
            }
        };
        if let Some(identity) = object.identity()
            && !self.is_first(identity, &place)
        {
            return Ok(());
        }
        match object {
            Object::Service(service) => self.all.services.push(service),
            Object::Slice(slice, skipped) => {
                self.all.slices.push(slice);
                let fault = skipped.as_ref().and_then(Fault::skipped);
                self.all.faults.extend(fault.map(|fault| fault.at(place)));
            }
            Object::Node(node) => self.all.nodes.push(node),
            Object::Namespace(namespace, client) => {
                self.all.namespaces.push(namespace);
                self.all.clients.get_or_insert_default().add(client);
            }
            Object::TopologyPolicy(policy) => self.all.policies.push(policy),
            Object::ClusterTopologyPolicy(policy) => self.all.cluster_policies.push(policy),
            Object::Client(client, pod) => {
                self.all.pods.extend(pod);
                self.all.clients.get_or_insert_default().add(client);
            }
            Object::Other => {}
        }
        Ok(())
    }
}

//! Objects as [`State`](super::State) keeps them: a hundred thousand endpoints must fit an agent
//! of 40 MB.
//!
//! What objects have in common is stored once: names, places, ports, policies. An endpoint is then an
//! address, three flags and a pointer.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use super::labels::Labels;
use super::service::{PolicySources, Service, ServiceId};
use super::slice::{Slice, SliceEndpoint, SlicePort};

/// What an endpoint's slice says of where it is and for whom: the same for many endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// `nodeName`.
    pub node: Option<Arc<str>>,
    /// Labels that the slice itself carries.
    pub labels: Labels,
    /// `hints.forNodes`.
    pub for_nodes: Box<[Arc<str>]>,
    /// `hints.forZones`.
    pub for_zones: Box<[Arc<str>]>,
}

/// An endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`.
    pub address: IpAddr,
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// Node, labels and hints; `None` where the slice carries none of them.
    pub place: Option<Arc<Place>>,
}

impl Endpoint {
    /// `nodeName`.
    #[must_use]
    pub fn node(&self) -> Option<&Arc<str>> {
        self.place.as_ref()?.node.as_ref()
    }

    /// The value of a label that the slice itself carries.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&Arc<str>> {
        self.place.as_ref()?.labels.get(key)
    }

    /// `hints.forNodes`; empty where there are none.
    #[must_use]
    pub fn for_nodes(&self) -> &[Arc<str>] {
        self.place.as_ref().map_or(&[], |place| &place.for_nodes)
    }

    /// `hints.forZones`; empty where there are none.
    #[must_use]
    pub fn for_zones(&self) -> &[Arc<str>] {
        self.place.as_ref().map_or(&[], |place| &place.for_zones)
    }
}

/// A slice that belongs to a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The Service it belongs to.
    pub service: ServiceId,
    /// `ports`.
    pub ports: Arc<[SlicePort]>,
    /// `endpoints`.
    pub endpoints: Box<[Endpoint]>,
}

/// What is stored once.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    strings: Pool<str>,
    places: Pool<Place>,
    ports: Pool<[SlicePort]>,
    policies: Pool<PolicySources>,
}

impl Shared {
    pub(super) fn text(&mut self, text: Arc<str>) -> Arc<str> {
        self.strings.share(text)
    }

    pub(super) fn id(&mut self, id: ServiceId) -> ServiceId {
        ServiceId { namespace: self.text(id.namespace), name: self.text(id.name) }
    }

    pub(super) fn service(&mut self, mut service: Service) -> Service {
        service.id = self.id(service.id);
        for port in &mut service.ports {
            port.name = self.text(port.name.clone());
        }
        service.policy = self.policies.share(service.policy);
        service.ports.shrink_to_fit();
        service.cluster_ips.shrink_to_fit();
        service
    }

    /// `None` for a slice that belongs to no Service.
    pub(super) fn slice(&mut self, slice: Slice) -> Option<Endpoints> {
        let service = self.id(slice.service?);
        let ports = self.ports.share(slice.ports.into());
        let endpoints = slice.endpoints.into_iter().map(|one| self.endpoint(one)).collect();
        Some(Endpoints { service, ports, endpoints })
    }

    fn endpoint(&mut self, endpoint: SliceEndpoint) -> Endpoint {
        let SliceEndpoint { labels, for_nodes, for_zones, .. } = endpoint;
        let place = Place {
            node: endpoint.node.map(|name| self.text(name)),
            labels: Labels::shared(labels, |text| self.strings.share(text)),
            for_nodes: for_nodes.into_iter().map(|name| self.strings.share(name)).collect(),
            for_zones: for_zones.into_iter().map(|name| self.strings.share(name)).collect(),
        };
        Endpoint {
            address: endpoint.address,
            ready: endpoint.ready,
            serving: endpoint.serving,
            terminating: endpoint.terminating,
            place: (place != Place::default()).then(|| self.places.share(Arc::new(place))),
        }
    }
}

/// Values that are stored once for as long as somebody else holds them.
#[derive(Debug)]
struct Pool<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Unused values are dropped when there are more than this.
    limit: usize,
}

/// Below this nothing is ever dropped.
const SMALLEST_LIMIT: usize = 1024;

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), limit: SMALLEST_LIMIT }
    }
}

// By hand: derived, it would ask for `T: Clone`.
impl<T: ?Sized> Clone for Pool<T> {
    fn clone(&self) -> Self {
        Self { values: self.values.clone(), limit: self.limit }
    }
}

impl<T: Eq + Hash + ?Sized> Pool<T> {
    fn share(&mut self, value: Arc<T>) -> Arc<T> {
        if let Some(known) = self.values.get(&*value) {
            return Arc::clone(known);
        }
        if self.values.len() >= self.limit {
            // Each sweep is paid for by as many insertions as it leaves values.
            self.values.retain(|known| Arc::strong_count(known) > 1);
            self.limit = SMALLEST_LIMIT.max(self.values.len() * 2);
        }
        self.values.insert(Arc::clone(&value));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_small() {
        assert!(size_of::<Endpoint>() <= 32, "{} bytes", size_of::<Endpoint>());
    }

    #[test]
    fn equal_strings_are_stored_once() {
        let mut pool = Pool::<str>::default();
        let first = pool.share("zone".into());
        let second = pool.share("zone".into());
        assert!(Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn strings_that_nobody_holds_do_not_pile_up() {
        let mut pool = Pool::<str>::default();
        let kept = pool.share("kept".into());
        for number in 0..100_000 {
            pool.share(number.to_string().into());
        }
        assert!(pool.values.len() <= 2 * SMALLEST_LIMIT, "{} strings", pool.values.len());
        assert!(Arc::ptr_eq(&kept, &pool.share("kept".into())));
    }
}

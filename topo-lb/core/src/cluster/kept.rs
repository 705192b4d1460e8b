//! Objects as [`State`](super::State) keeps them: 100,000 endpoints must fit an agent of 40 MB.
//!
//! Names, places, ports and policies are shared. An endpoint has an address, 3 flags, a pointer.

use std::borrow::Borrow;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use super::labels::Labels;
use super::port::Port;
use super::service::{PolicySources, Service, ServiceId};
use super::slice::{Endpoint, Placement, Slice, SliceId};

/// A slice that belongs to a Service. Two are equal if the API has said the same.
#[derive(Clone, Debug)]
pub struct Endpoints {
    /// Namespace and name.
    pub id: SliceId,
    /// The Service it belongs to.
    pub service: ServiceId,
    /// `ports`.
    pub ports: Arc<[Port]>,
    /// `endpoints`.
    pub endpoints: Box<[Endpoint]>,
    /// Labelled `service.kubernetes.io/headless`: not for proxies.
    pub headless: bool,
    /// Copied from an Endpoints object.
    pub mirrored: bool,
    /// When endpoints became Ready lately, in seconds since 1970, by address; sorted. Only of Services with a slow
    /// start.
    pub ready_since: Box<[(IpAddr, i64)]>,
}

impl PartialEq for Endpoints {
    fn eq(&self, other: &Self) -> bool {
        // All fields but the last, so that no new one is forgotten.
        let Self { id, service, ports, endpoints, headless, mirrored, ready_since: _ } = self;
        (id, service, headless, mirrored)
            == (&other.id, &other.service, &other.headless, &other.mirrored)
            && (ports, endpoints) == (&other.ports, &other.endpoints)
    }
}

impl Eq for Endpoints {}

/// A slice in a set of slices with different ids.
#[derive(Clone, Debug)]
pub(super) struct ById(pub(super) Arc<Endpoints>);

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for ById {}

impl Hash for ById {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl Borrow<SliceId> for ById {
    fn borrow(&self) -> &SliceId {
        &self.0.id
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    strings: Pool<str>,
    places: Pool<Placement>,
    ports: Pool<[Port]>,
    policies: Pool<PolicySources>,
}

impl Shared {
    pub(super) fn text(&mut self, text: Arc<str>) -> Arc<str> {
        self.strings.share(text)
    }

    pub(super) fn id(&mut self, id: ServiceId) -> ServiceId {
        ServiceId { namespace: self.text(id.namespace), name: self.text(id.name) }
    }

    pub(super) fn labels(&mut self, labels: &Labels) -> Labels {
        labels.map(|text| self.strings.share(Arc::clone(text)))
    }

    pub(super) fn service(&mut self, mut service: Service) -> Service {
        service.id = self.id(service.id);
        for port in &mut service.ports {
            port.name = self.text(port.name.clone());
        }
        service.labels = self.labels(&service.labels);
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
        let id = SliceId { namespace: self.text(slice.id.namespace), name: slice.id.name };
        let Slice { headless, mirrored, ready_since, .. } = slice;
        let ready_since = ready_since.into();
        Some(Endpoints { id, service, ports, endpoints, headless, mirrored, ready_since })
    }

    fn endpoint(&mut self, endpoint: Endpoint) -> Endpoint {
        Endpoint { place: endpoint.place.map(|place| self.place(&place)), ..endpoint }
    }

    fn place(&mut self, place: &Placement) -> Arc<Placement> {
        if let Some(known) = self.places.values.get(place) {
            return Arc::clone(known);
        }
        let mut text = |text: &Arc<str>| self.strings.share(Arc::clone(text));
        self.places.share(Arc::new(Placement {
            node: place.node.as_ref().map(&mut text),
            labels: place.labels.map(&mut text),
            for_nodes: place.for_nodes.iter().map(&mut text).collect(),
            for_zones: place.for_zones.iter().map(&mut text).collect(),
        }))
    }
}

/// Shared values. The pool drops those that nothing else holds, in sweeps.
#[derive(Debug)]
struct Pool<T: ?Sized> {
    values: HashSet<Arc<T>>,
    /// Size at which the next insertion sweeps.
    limit: usize,
}

/// Smallest `limit`.
const SMALLEST_LIMIT: usize = 1024;

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { values: HashSet::new(), limit: SMALLEST_LIMIT }
    }
}

// Not derived: the derive would require `T: Clone`.
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
            // Amortized: at least as many insertions follow as values remain.
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

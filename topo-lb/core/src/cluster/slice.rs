//! An EndpointSlice of `discovery.k8s.io/v1` or `v1beta1`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::labels::Labels;
use super::port::Port;
use super::service::ServiceId;

/// Namespace and name of an EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SliceId {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

/// Node, labels and hints of an endpoint, from its slice. Many endpoints share one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// `nodeName`; in v1beta1 `topology["kubernetes.io/hostname"]` if `nodeName` is absent. The
    /// saved state writes it at each endpoint.
    #[serde(skip)]
    pub node: Option<Arc<str>>,
    /// Labels that the slice carries: `zone` (as `topology.kubernetes.io/zone`), v1beta1
    /// `topology`, v1 `deprecatedTopology`. They override the Node's.
    pub labels: Labels,
    /// `hints.forNodes[].name`.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub for_nodes: Box<[Arc<str>]>,
    /// `hints.forZones[].name`.
    #[serde(default, skip_serializing_if = "<[_]>::is_empty")]
    pub for_zones: Box<[Arc<str>]>,
}

impl Placement {
    /// A place with only a Node.
    #[must_use]
    pub fn on(node: impl Into<Arc<str>>) -> Self {
        Self { node: Some(node.into()), ..Self::default() }
    }
}

/// One entry of `endpoints`, with its first address only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `addresses[0]`, of the slice's family.
    pub address: IpAddr,
    /// `conditions.ready`; absent means true.
    pub ready: bool,
    /// `conditions.serving`; absent means true.
    pub serving: bool,
    /// `conditions.terminating`; absent means false.
    pub terminating: bool,
    /// Whether it has a `hostname`, which DNS knows beside the Service's name: a member of a StatefulSet.
    pub has_hostname: bool,
    /// Node, labels and hints; `None` if the slice carries none of them.
    pub place: Option<Arc<Placement>>,
}

impl Endpoint {
    /// A ready endpoint.
    #[must_use]
    pub fn new(address: IpAddr, place: Placement) -> Self {
        let place = (place != Placement::default()).then(|| Arc::new(place));
        let (ready, serving, terminating, has_hostname) = (true, true, false, false);
        Self { address, ready, serving, terminating, has_hostname, place }
    }

    /// `nodeName`.
    #[must_use]
    pub fn node(&self) -> Option<&Arc<str>> {
        self.place.as_ref()?.node.as_ref()
    }

    /// The value of a label that the slice carries.
    #[must_use]
    pub fn label(&self, key: &str) -> Option<&Arc<str>> {
        self.place.as_ref()?.labels.get(key)
    }

    /// `hints.forNodes`; empty if absent.
    #[must_use]
    pub fn for_nodes(&self) -> &[Arc<str>] {
        self.place.as_ref().map_or(&[], |place| &place.for_nodes)
    }

    /// `hints.forZones`; empty if absent.
    #[must_use]
    pub fn for_zones(&self) -> &[Arc<str>] {
        self.place.as_ref().map_or(&[], |place| &place.for_zones)
    }
}

/// An EndpointSlice; without endpoints if FQDN, or labelled for another proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name.
    pub id: SliceId,
    /// The Service that label `kubernetes.io/service-name` names; `None` if absent.
    pub service: Option<ServiceId>,
    /// `ports`; those without a number are dropped.
    pub ports: Vec<Port>,
    /// `endpoints`.
    pub endpoints: Vec<Endpoint>,
    /// Labelled `service.kubernetes.io/headless`, as the slices of Services without a ClusterIP are: not for
    /// proxies.
    pub headless: bool,
    /// Copied from an Endpoints object, which a person may have written (label
    /// `endpointslice.kubernetes.io/managed-by`, pkg/controller/endpointslicemirroring).
    pub mirrored: bool,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`: when the Pod or Service
    /// changed that caused this slice's change. For latency metrics, and for [`ready_since`](Self::ready_since).
    pub triggered: Option<SystemTime>,
    /// Which of its endpoints became Ready when, in seconds since 1970, as an earlier run of this agent has seen it.
    /// The API does not say it.
    pub ready_since: Vec<(IpAddr, i64)>,
}

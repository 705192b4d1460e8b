//! A Service: its frontends and everything its topology policy can come from.

use std::net::IpAddr;
use std::sync::Arc;

pub use super::protocol::Protocol;
use super::slice::SlicePort;
use super::uid::Uid;

/// Namespace and name of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl std::fmt::Display for ServiceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// One entry of `spec.ports`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// `name`; empty where there is none. EndpointSlice ports match by it.
    pub name: Arc<str>,
    /// `port`, 1–65535.
    pub port: u16,
    /// `protocol`, TCP where absent.
    pub protocol: Protocol,
}

impl ServicePort {
    /// Whether a slice's port is this Service port's: by name and protocol, as kube-proxy matches
    /// them. The numbers have nothing to do with each other.
    #[must_use]
    pub fn matches(&self, port: &SlicePort) -> bool {
        self.name == port.name && self.protocol == port.protocol
    }
}

/// Why a Service has nothing for topo-lb to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// `clusterIP: None`.
    Headless,
    /// `type: ExternalName`.
    ExternalName,
    /// Labelled `service.kubernetes.io/service-proxy-name`: another proxy's.
    OtherProxy,
    /// Labelled `service.kubernetes.io/headless`.
    HeadlessLabel,
    /// No ClusterIP was given to it yet.
    NoClusterIp,
}

impl Skipped {
    /// Why, in words that follow the Service's name.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Headless => "headless (`clusterIP: None`): clients dial its pods themselves",
            Self::ExternalName => "`type: ExternalName`: a name, not an address",
            Self::OtherProxy => {
                "labelled `service.kubernetes.io/service-proxy-name`: another proxy's"
            }
            Self::HeadlessLabel => "labelled `service.kubernetes.io/headless`: not for proxies",
            Self::NoClusterIp => "no ClusterIP was given to it yet",
        }
    }
}

/// What of a Service may carry a topology policy, as it was written: not validated here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicySources {
    /// Annotation `topo-lb.io/topology-keys`.
    pub topology_keys: Option<Arc<str>>,
    /// Annotation `openyurt.io/topologyKeys`.
    pub openyurt: Option<Arc<str>>,
    /// Field `spec.topologyKeys`; an empty list is the same as none.
    pub spec_topology_keys: Vec<Arc<str>>,
    /// Annotation `topo-lb.io/min-endpoints`.
    pub min_endpoints: Option<Arc<str>>,
    /// Annotation `topo-lb.io/spill`.
    pub spill: Option<Arc<str>>,
    /// Annotation `topo-lb.io/refusal`.
    pub refusal: Option<Arc<str>>,
    /// Annotation `topo-lb.io/handle`.
    pub handle: Option<Arc<str>>,
    /// Field `spec.trafficDistribution`, or annotation `service.kubernetes.io/topology-mode`
    /// (before 1.27 `…/topology-aware-hints`): hints are asked for.
    pub hints_asked: bool,
}

/// A Service of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Namespace and name.
    pub id: ServiceId,
    /// `metadata.uid`, where the source gives one: Events refer to it.
    pub uid: Option<Uid>,
    /// `spec.clusterIPs`, or `spec.clusterIP` where that is all there is.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
    /// Where its policy may come from: shared, as most Services have the same, which is none.
    pub policy: Arc<PolicySources>,
    /// `internalTrafficPolicy: Local`.
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`.
    pub external_local: bool,
    /// `sessionAffinity: ClientIP`'s timeout in seconds, 1–86400; `None` without affinity.
    pub affinity_seconds: Option<u32>,
    /// Why it is not ours at all.
    pub skipped: Option<Skipped>,
}

//! A Service: its frontends and everything its topology policy can come from.
//!
//! These types are also lines of the saved state. A change to how they are serialized needs another
//! `VERSION` in `source/saved/format.rs`, unless older agents can ignore it.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::port::Port;
pub use super::protocol::Protocol;
use super::uid::Uid;

/// Namespace and name of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServiceId {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl Ord for ServiceId {
    /// By namespace, then by name. Most ids of a namespace share its text, which then is not read:
    /// a cluster of 10,000 Services starts with a million comparisons.
    fn cmp(&self, other: &Self) -> Ordering {
        let is_same = Arc::ptr_eq(&self.namespace, &other.namespace);
        let namespaces =
            if is_same { Ordering::Equal } else { self.namespace.cmp(&other.namespace) };
        namespaces.then_with(|| self.name.cmp(&other.name))
    }
}

impl PartialOrd for ServiceId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl std::fmt::Display for ServiceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Why a Service has nothing for topo-lb to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicySources {
    /// Annotation `topo-lb.io/topology-keys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_keys: Option<Arc<str>>,
    /// Annotation `openyurt.io/topologyKeys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub openyurt: Option<Arc<str>>,
    /// Field `spec.topologyKeys`; an empty list is the same as none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spec_topology_keys: Vec<Arc<str>>,
    /// Annotation `topo-lb.io/min-endpoints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_endpoints: Option<Arc<str>>,
    /// Annotation `topo-lb.io/spill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<Arc<str>>,
    /// Annotation `topo-lb.io/refusal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Arc<str>>,
    /// Annotation `topo-lb.io/handle`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle: Option<Arc<str>>,
    /// Field `spec.trafficDistribution`, or annotation `service.kubernetes.io/topology-mode`
    /// (before 1.27 `…/topology-aware-hints`): hints are asked for.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hints_asked: bool,
}

/// A Service of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Namespace and name.
    #[serde(flatten)]
    pub id: ServiceId,
    /// `metadata.uid`, where the source gives one: Events refer to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uid>,
    /// `spec.clusterIPs`, or `spec.clusterIP` where that is all there is.
    #[serde(rename = "addresses")]
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: Vec<Port>,
    /// Where its policy may come from: shared, as most Services have the same, which is none.
    #[serde(flatten)]
    pub policy: Arc<PolicySources>,
    /// `internalTrafficPolicy: Local`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub internal_local: bool,
    /// `externalTrafficPolicy: Local`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub external_local: bool,
    /// `sessionAffinity: ClientIP`'s timeout in seconds, 1–86400; `None` without affinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_seconds: Option<u32>,
    /// Why it is not ours at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
}

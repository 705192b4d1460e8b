//! A Service: its frontends, and the sources of its policy. The saved state serializes these types:
//! raise `VERSION` in `source/saved/format.rs` for a change that older agents cannot ignore.

use std::cmp::Ordering;
use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::created::Created;
use super::exposure::Exposure;
use super::labels::Labels;
use super::port::Port;
pub use super::protocol::Protocol;

/// Namespace and name of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ServiceId {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl Ord for ServiceId {
    /// By namespace, then by name. Most ids of a namespace share its text, and a shared text is not
    /// compared: the start with 10,000 Services takes a million comparisons.
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

/// Why topo-lb does not translate a Service; as text, what to say after the Service's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, strum::IntoStaticStr)]
pub enum Skipped {
    /// `clusterIP: None`.
    #[strum(serialize = "headless (`clusterIP: None`): clients dial its pods themselves")]
    Headless,
    /// `type: ExternalName`.
    #[strum(serialize = "`type: ExternalName`: a name, not an address")]
    ExternalName,
    /// Labelled `service.kubernetes.io/service-proxy-name`: another proxy's.
    #[strum(serialize = "labelled `service.kubernetes.io/service-proxy-name`: another proxy's")]
    OtherProxy,
    /// Labelled `service.kubernetes.io/headless`.
    #[strum(serialize = "labelled `service.kubernetes.io/headless`: not for proxies")]
    HeadlessLabel,
    /// It has no ClusterIP yet.
    #[strum(serialize = "no ClusterIP was given to it yet")]
    NoClusterIp,
}

/// Is kept in place of a text that is longer than any valid one; is no valid one itself.
pub const TOO_LONG: &str = "\0 too long";

/// The value of `topo-lb.io/spill` for a share that follows from the number of Nodes.
pub const AUTO: &str = "auto";

/// The value of `topo-lb.io/direct` by which steered Pods get another endpoint than they dial.
pub const STEER: &str = "steer";

/// The annotations and fields that may hold a topology policy, as written and not validated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicySources {
    /// Annotation `topo-lb.io/topology-keys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_keys: Option<Arc<str>>,
    /// Annotation `openyurt.io/topologyKeys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub openyurt: Option<Arc<str>>,
    /// Field `spec.topologyKeys` of a Service or a policy; an empty list is the same as none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub spec_topology_keys: Vec<Arc<str>>,
    /// Annotation `topo-lb.io/external-topology-keys`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external_topology_keys: Option<Arc<str>>,
    /// Annotation `topo-lb.io/min-endpoints`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_endpoints: Option<Arc<str>>,
    /// Annotation `topo-lb.io/spill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<Arc<str>>,
    /// Annotation `topo-lb.io/weights`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<Arc<str>>,
    /// Annotation `topo-lb.io/ejection`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ejection: Option<Arc<str>>,
    /// Annotation `topo-lb.io/evacuate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evacuate: Option<Arc<str>>,
    /// Annotation `topo-lb.io/return`.
    #[serde(rename = "return", skip_serializing_if = "Option::is_none")]
    pub return_after: Option<Arc<str>>,
    /// Annotation `topo-lb.io/slow-start`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_start: Option<Arc<str>>,
    /// Annotation `topo-lb.io/refusal`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Arc<str>>,
    /// Annotation `topo-lb.io/direct`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct: Option<Arc<str>>,
    /// Annotation `topo-lb.io/direct-return`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub direct_return: Option<Arc<str>>,
    /// Annotation `topo-lb.io/choice`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Arc<str>>,
    /// Annotation `topo-lb.io/handle`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handle: Option<Arc<str>>,
    /// Annotation `topo-lb.io/dns`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dns: Option<Arc<str>>,
    /// Annotation `topo-lb.io/mode`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Arc<str>>,
    /// Annotation `topo-lb.io/ramp`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Arc<str>>,
    /// Field `spec.trafficDistribution`, or annotation `service.kubernetes.io/topology-mode`
    /// (before 1.27 `…/topology-aware-hints`): the Service asks for hints.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub hints_asked: bool,
}

impl PolicySources {
    /// Whether there are topology keys, valid or not.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        self.topology_keys.is_some() || !self.spec_topology_keys.is_empty()
    }

    /// Whether it follows from the number of Nodes: `topo-lb.io/spill: auto`.
    #[must_use]
    pub fn counts_nodes(&self) -> bool {
        self.spill.as_deref().is_some_and(|text| text.trim() == AUTO)
    }

    /// Whether it asks that Pods be steered: `topo-lb.io/direct: steer`.
    #[must_use]
    pub fn steers(&self) -> bool {
        self.direct.as_deref().is_some_and(|text| text.trim() == STEER)
    }
}

/// A Service of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Namespace and name.
    #[serde(flatten)]
    pub id: ServiceId,
    /// `metadata.uid`, if the source has one: Events refer to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<Uuid>,
    /// `spec.clusterIPs`; if absent, `spec.clusterIP`.
    #[serde(rename = "addresses")]
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.ports`.
    pub ports: Vec<Port>,
    /// `metadata.labels`: policies select by them.
    #[serde(skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Its policy as written. Shared, because most Services have none.
    #[serde(flatten)]
    pub policy: Arc<PolicySources>,
    /// `internalTrafficPolicy: Local`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub internal_local: bool,
    /// Where it can be dialled besides its ClusterIPs. Shared, because most Services have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exposure: Option<Arc<Exposure>>,
    /// Of two Services that claim a frontend, the older one gets it.
    #[serde(default, skip_serializing_if = "Created::is_unknown")]
    pub created: Created,
    /// `externalTrafficPolicy: Local`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub external_local: bool,
    /// `sessionAffinity: ClientIP`'s timeout in seconds, 1–86400; `None` without affinity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_seconds: Option<u32>,
    /// Why topo-lb does not translate it, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
}

impl Service {
    /// Whether clients dial the port at `place` by this address and number.
    #[must_use]
    pub fn is_dialled_at(&self, place: usize, address: IpAddr, number: u16) -> bool {
        let is_own = |address| {
            self.cluster_ips.contains(address)
                || self.exposure.as_ref().is_some_and(|exposure| {
                    exposure.load_balancer_ips.contains(address)
                        || exposure.external_ips.contains(address)
                })
        };
        let node_port = self.exposure.as_ref().and_then(|exposure| exposure.node_port(place));
        self.ports.get(place).is_some_and(|port| port.port == number) && is_own(&address)
            || node_port == Some(number)
    }
}

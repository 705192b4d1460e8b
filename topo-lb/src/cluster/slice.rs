//! An EndpointSlice, of `discovery.k8s.io/v1` or `v1beta1`: both become this.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use super::protocol::Protocol;
use super::service::ServiceId;

/// Namespace and name of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SliceId {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

/// One entry of `ports`. Ports without a number are left out already.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SlicePort {
    /// `name`; empty where there is none.
    pub name: Arc<str>,
    /// `port`, 1–65535.
    pub port: u16,
    /// `protocol`, TCP where absent.
    pub protocol: Protocol,
}

/// One entry of `endpoints`. Only its first address counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceEndpoint {
    /// `addresses[0]`, of the slice's family.
    pub address: IpAddr,
    /// `nodeName`; of v1beta1 `topology["kubernetes.io/hostname"]` where `nodeName` is absent.
    pub node: Option<Arc<str>>,
    /// Labels that the slice itself carries: `zone` (as `topology.kubernetes.io/zone`), v1beta1
    /// `topology`, v1 `deprecatedTopology`. They come before the Node's.
    pub labels: BTreeMap<Arc<str>, Arc<str>>,
    /// `conditions.ready`; absent means true.
    pub ready: bool,
    /// `conditions.serving`; absent means true.
    pub serving: bool,
    /// `conditions.terminating`; absent means false.
    pub terminating: bool,
    /// `hints.forNodes[].name`.
    pub for_nodes: Vec<Arc<str>>,
    /// `hints.forZones[].name`.
    pub for_zones: Vec<Arc<str>>,
}

/// An EndpointSlice of the cluster. FQDN slices, and slices labelled for another proxy or as
/// headless, become slices without endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Namespace and name.
    pub id: SliceId,
    /// The Service of label `kubernetes.io/service-name`; `None` where the label is absent.
    pub service: Option<ServiceId>,
    /// `ports`.
    pub ports: Vec<SlicePort>,
    /// `endpoints`.
    pub endpoints: Vec<SliceEndpoint>,
    /// Annotation `endpoints.kubernetes.io/last-change-trigger-time`: when the pod or Service
    /// changed that this slice follows. It travels with the slice and is not kept: nothing that
    /// connections do depends on it.
    pub triggered: Option<SystemTime>,
}

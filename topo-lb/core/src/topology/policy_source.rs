//! The fields and objects that a policy comes from.

/// The source of a Service's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::Display, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum PolicySource {
    /// Annotation `topo-lb.io/topology-keys`.
    #[strum(serialize = "topo-lb.io/topology-keys")]
    TopologyKeys,
    /// Annotation `topo-lb.io/external-topology-keys`, for clients outside.
    #[strum(serialize = "topo-lb.io/external-topology-keys")]
    ExternalTopologyKeys,
    /// Annotation `openyurt.io/topologyKeys`.
    #[strum(serialize = "openyurt.io/topologyKeys")]
    OpenYurt,
    /// Field `spec.topologyKeys`.
    #[strum(serialize = "spec.topologyKeys")]
    SpecTopologyKeys,
    /// A TopologyPolicy that selects the Service.
    #[strum(serialize = "TopologyPolicy")]
    TopologyPolicy,
    /// Annotation `topo-lb.io/topology-keys` of the Service's Namespace.
    #[strum(serialize = "Namespace")]
    Namespace,
    /// A ClusterTopologyPolicy that selects the Service.
    #[strum(serialize = "ClusterTopologyPolicy")]
    ClusterTopologyPolicy,
    /// EndpointSlice hints.
    Hints,
    /// No policy: unconstrained.
    None,
}

//! The kinds of objects in the cluster's state.

/// A kind of object in the cluster's state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
pub enum Kind {
    /// `v1` Service.
    #[default]
    Service,
    /// `discovery.k8s.io/v1` or `v1beta1` EndpointSlice.
    #[strum(serialize = "EndpointSlice")]
    Slice,
    /// `v1` Node.
    Node,
    /// `v1` Namespace.
    Namespace,
    /// `topo-lb.io/v1alpha1` TopologyPolicy.
    TopologyPolicy,
    /// `topo-lb.io/v1alpha1` ClusterTopologyPolicy.
    ClusterTopologyPolicy,
}

impl Kind {
    /// The kind of these names; `None` for all others.
    #[must_use]
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        match (api_version, kind) {
            ("v1", "Service") => Some(Self::Service),
            ("discovery.k8s.io/v1" | "discovery.k8s.io/v1beta1", "EndpointSlice") => {
                Some(Self::Slice)
            }
            ("v1", "Node") => Some(Self::Node),
            ("v1", "Namespace") => Some(Self::Namespace),
            ("topo-lb.io/v1alpha1", "TopologyPolicy") => Some(Self::TopologyPolicy),
            ("topo-lb.io/v1alpha1", "ClusterTopologyPolicy") => Some(Self::ClusterTopologyPolicy),
            _ => None,
        }
    }

    /// How many of [`ALL`](Self::ALL), the first ones, are required.
    pub const REQUIRED: usize = 3;
    /// Every kind.
    pub const ALL: [Self; 6] = [
        Self::Service,
        Self::Slice,
        Self::Node,
        Self::Namespace,
        Self::TopologyPolicy,
        Self::ClusterTopologyPolicy,
    ];

    /// Whether topo-lb can do nothing without it. The others only give policies to many Services at once.
    #[must_use]
    pub const fn is_required(self) -> bool {
        matches!(self, Self::Service | Self::Slice | Self::Node)
    }

    /// Whether its objects have a namespace.
    #[must_use]
    pub const fn is_namespaced(self) -> bool {
        matches!(self, Self::Service | Self::Slice | Self::TopologyPolicy)
    }
}

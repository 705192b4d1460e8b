//! The objects that can say a policy for a Service. Their order is in `policy`.

use std::fmt;
use std::sync::Arc;

use super::policy_source::PolicySource;
use crate::cluster::PolicyId;

/// The object that says a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// The Service itself.
    #[default]
    Service,
    /// A TopologyPolicy or ClusterTopologyPolicy that selects it.
    Policy(PolicyId),
    /// Its Namespace.
    Namespace(Arc<str>),
}

impl Origin {
    /// The source of keys that it says; `None` for a Service, which has several.
    pub(super) fn source(&self) -> Option<PolicySource> {
        match self {
            Self::Service => None,
            Self::Policy(id) if id.is_of_cluster() => Some(PolicySource::ClusterTopologyPolicy),
            Self::Policy(_) => Some(PolicySource::TopologyPolicy),
            Self::Namespace(_) => Some(PolicySource::Namespace),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service => f.write_str("the Service"),
            Self::Policy(id) => write!(f, "{id}"),
            Self::Namespace(name) => write!(f, "Namespace {name}"),
        }
    }
}

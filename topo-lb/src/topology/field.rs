//! Annotations and fields that say a part of a policy.

use std::fmt;

use super::PolicySource;
use crate::cluster::service::PolicySources;

/// A part of an object that can break a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The source of a policy.
    Policy(PolicySource),
    /// Annotation `topo-lb.io/min-endpoints`.
    MinEndpoints,
    /// Annotation `topo-lb.io/spill`.
    Spill,
    /// Annotation `topo-lb.io/weights`.
    Weights,
    /// Annotation `topo-lb.io/ejection`.
    Ejection,
    /// Annotation `topo-lb.io/refusal`.
    Refusal,
    /// Annotation `topo-lb.io/handle`.
    Handle,
    /// Annotation `topo-lb.io/mode`.
    Mode,
    /// Annotation `topo-lb.io/ramp`.
    Ramp,
}

impl Field {
    /// The annotation or field of a Service, and the field of a TopologyPolicy with the same meaning.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Policy(source @ PolicySource::ExternalTopologyKeys) => {
                (source.into(), "spec.externalTopologyKeys")
            }
            Self::Policy(source) => (source.into(), "spec.topologyKeys"),
            Self::MinEndpoints => ("topo-lb.io/min-endpoints", "spec.minEndpoints"),
            Self::Spill => ("topo-lb.io/spill", "spec.spill"),
            Self::Weights => ("topo-lb.io/weights", "spec.weights"),
            Self::Ejection => ("topo-lb.io/ejection", "spec.ejection"),
            Self::Refusal => ("topo-lb.io/refusal", "spec.refusal"),
            Self::Handle => ("topo-lb.io/handle", "spec.handle"),
            Self::Mode => ("topo-lb.io/mode", "spec.mode"),
            Self::Ramp => ("topo-lb.io/ramp", "spec.ramp"),
        }
    }

    /// What an object says there.
    pub(super) fn said(self, policy: &PolicySources) -> Option<&str> {
        let text = match self {
            Self::Policy(PolicySource::TopologyKeys) => &policy.topology_keys,
            Self::Policy(PolicySource::ExternalTopologyKeys) => &policy.external_topology_keys,
            Self::Policy(PolicySource::OpenYurt) => &policy.openyurt,
            Self::Policy(_) => &None,
            Self::MinEndpoints => &policy.min_endpoints,
            Self::Spill => &policy.spill,
            Self::Weights => &policy.weights,
            Self::Ejection => &policy.ejection,
            Self::Refusal => &policy.refusal,
            Self::Handle => &policy.handle,
            Self::Mode => &policy.mode,
            Self::Ramp => &policy.ramp,
        };
        text.as_deref()
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Policy(PolicySource::SpecTopologyKeys) => "field",
            _ => "annotation",
        };
        write!(f, "{kind} {}", self.names().0)
    }
}

//! Annotations and fields that say a part of a policy.

use std::fmt;

use super::PolicySource;
use crate::cluster::Annotation;
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
    /// The annotation; `None` for what is not said in one.
    const fn annotation(self) -> Option<Annotation> {
        Some(match self {
            Self::Policy(PolicySource::TopologyKeys) => Annotation::TopologyKeys,
            Self::Policy(PolicySource::ExternalTopologyKeys) => Annotation::ExternalTopologyKeys,
            Self::Policy(PolicySource::OpenYurt) => Annotation::OpenYurt,
            Self::Policy(_) => return None,
            Self::MinEndpoints => Annotation::MinEndpoints,
            Self::Spill => Annotation::Spill,
            Self::Weights => Annotation::Weights,
            Self::Ejection => Annotation::Ejection,
            Self::Refusal => Annotation::Refusal,
            Self::Handle => Annotation::Handle,
            Self::Mode => Annotation::Mode,
            Self::Ramp => Annotation::Ramp,
        })
    }

    /// The annotation or field of a Service, and the field of a TopologyPolicy with the same meaning.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        let own = match self {
            Self::Policy(source) => source.into(),
            _ => self.annotation().map_or("", Annotation::name),
        };
        let field = match self {
            Self::Policy(PolicySource::ExternalTopologyKeys) => "spec.externalTopologyKeys",
            Self::Policy(_) => "spec.topologyKeys",
            Self::MinEndpoints => "spec.minEndpoints",
            Self::Spill => "spec.spill",
            Self::Weights => "spec.weights",
            Self::Ejection => "spec.ejection",
            Self::Refusal => "spec.refusal",
            Self::Handle => "spec.handle",
            Self::Mode => "spec.mode",
            Self::Ramp => "spec.ramp",
        };
        (own, field)
    }

    /// What an object says there.
    pub(super) fn said(self, policy: &PolicySources) -> Option<&str> {
        self.annotation()?.said(policy)
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

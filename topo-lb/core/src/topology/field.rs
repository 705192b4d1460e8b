//! Annotations and fields that say a part of a policy.

use std::fmt;

use super::policy_source::PolicySource;
use crate::cluster::Annotation;
use crate::cluster::service::PolicySources;

/// A part of an object that can break a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The source of a policy.
    Policy(PolicySource),
    /// Another annotation, or the field of a TopologyPolicy with the same meaning.
    Of(Annotation),
}

impl Field {
    /// The annotation; `None` for what is not said in one.
    const fn annotation(self) -> Option<Annotation> {
        Some(match self {
            Self::Policy(PolicySource::TopologyKeys) => Annotation::TopologyKeys,
            Self::Policy(PolicySource::ExternalTopologyKeys) => Annotation::ExternalTopologyKeys,
            Self::Policy(PolicySource::OpenYurt) => Annotation::OpenYurt,
            Self::Policy(_) => return None,
            Self::Of(annotation) => annotation,
        })
    }

    /// The annotation or field of a Service, and the field of a TopologyPolicy with the same meaning.
    pub(super) fn names(self) -> (&'static str, &'static str) {
        let own = match self {
            Self::Policy(source) => source.into(),
            Self::Of(annotation) => annotation.name(),
        };
        let field = match self.annotation() {
            Some(Annotation::ExternalTopologyKeys) => "spec.externalTopologyKeys",
            Some(Annotation::MinEndpoints) => "spec.minEndpoints",
            Some(Annotation::Spill) => "spec.spill",
            Some(Annotation::Weights) => "spec.weights",
            Some(Annotation::Ejection) => "spec.ejection",
            Some(Annotation::Evacuate) => "spec.evacuate",
            Some(Annotation::Return) => "spec.return",
            Some(Annotation::SlowStart) => "spec.slowStart",
            Some(Annotation::Refusal) => "spec.refusal",
            Some(Annotation::Direct) => "spec.direct",
            Some(Annotation::Handle) => "spec.handle",
            Some(Annotation::Mode) => "spec.mode",
            Some(Annotation::Ramp) => "spec.ramp",
            // The last are in no policy.
            Some(
                Annotation::TopologyKeys
                | Annotation::OpenYurt
                | Annotation::DirectReturn
                | Annotation::Choice
                | Annotation::Dns
                | Annotation::Exclude
                | Annotation::Steer,
            )
            | None => "spec.topologyKeys",
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

//! TopologyPolicy and ClusterTopologyPolicy: one policy for all Services that they select. The saved state
//! serializes these types.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::created::Created;
use super::namespace::Namespace;
use super::policy_status::PolicyStatus;
use super::selector::Selector;
use super::service::{PolicySources, Service};

/// Namespace and name of a policy; a ClusterTopologyPolicy has no namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyId {
    /// `metadata.namespace`; empty for a ClusterTopologyPolicy.
    #[serde(default, skip_serializing_if = "str::is_empty")]
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl PolicyId {
    /// Whether it is a ClusterTopologyPolicy's.
    #[must_use]
    pub fn is_of_cluster(&self) -> bool {
        self.namespace.is_empty()
    }

    /// The field `kind` of the object.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        if self.is_of_cluster() { "ClusterTopologyPolicy" } else { "TopologyPolicy" }
    }
}

impl std::fmt::Display for PolicyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &*self.namespace {
            "" => write!(f, "{} {}", self.kind(), self.name),
            namespace => write!(f, "{} {namespace}/{}", self.kind(), self.name),
        }
    }
}

/// A policy for the Services of its namespace that it selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopologyPolicy {
    /// Namespace and name.
    #[serde(flatten)]
    pub id: PolicyId,
    /// When it was created.
    #[serde(skip_serializing_if = "Created::is_unknown")]
    pub created: Created,
    /// `metadata.generation`: 0 if the source has none.
    pub generation: i64,
    /// `spec.precedence`: of two that select a Service, the one with the greater number is stronger.
    pub precedence: i32,
    /// `spec.namespaceSelector` of a ClusterTopologyPolicy.
    pub namespaces: Selector,
    /// `spec.serviceSelector`.
    pub services: Selector,
    /// What it says, in the form of the annotations of the same meaning.
    #[serde(flatten)]
    pub policy: Arc<PolicySources>,
    /// `status`, which changes nothing else.
    #[serde(skip)]
    pub reported: Reported,
}

/// The status that the API server has. All are equal: a change of it changes no decision.
#[derive(Clone, Debug, Default, Eq)]
pub struct Reported(pub Option<Arc<PolicyStatus>>);

impl PartialEq for Reported {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// A policy for the Services of all namespaces that it selects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ClusterTopologyPolicy(pub TopologyPolicy);

impl TopologyPolicy {
    /// Whether it selects a Service. `namespace`: the Service's, if it is known. Without it, only a selector
    /// without requirements or one by name matches.
    #[must_use]
    pub fn selects(&self, service: &Service, namespace: Option<&Namespace>) -> bool {
        let own = &service.id.namespace;
        let is_in_namespace = match &*self.id.namespace {
            "" => {
                let unknown = Namespace { name: Arc::clone(own), ..Namespace::default() };
                let namespace = namespace.unwrap_or(&unknown);
                self.namespaces.matches_by(|key| namespace.label(key))
            }
            namespace => *namespace == **own,
        };
        is_in_namespace && self.services.matches(&service.labels)
    }

    pub(super) fn strength(&self) -> Strength {
        Strength(Reverse(self.precedence), self.created, Arc::clone(&self.id.name))
    }
}

/// The order of policies of a namespace, the strongest first: by precedence, then age, then name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Strength(Reverse<i32>, Created, Arc<str>);

//! A Namespace: its labels, and the policy that its annotations give to all its Services.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::labels::Labels;
use super::service::PolicySources;

/// A Namespace of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Namespace {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.labels`.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// topo-lb's own annotations; those of Kubernetes and OpenYurt hold on Services only.
    #[serde(flatten)]
    pub policy: Arc<PolicySources>,
}

impl Namespace {
    /// Kubernetes 1.21 and later put this label on every Namespace: its name.
    const NAME: &str = "kubernetes.io/metadata.name";

    /// Whether its annotations say anything about policy.
    #[must_use]
    pub fn has_policy(&self) -> bool {
        *self.policy != PolicySources::default()
    }

    /// The value of a label.
    pub(super) fn label(&self, key: &str) -> Option<&str> {
        let own = self.labels.get(key).map(|value| &**value);
        own.or_else(|| (key == Self::NAME).then_some(&*self.name))
    }
}

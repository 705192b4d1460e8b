//! TopologyPolicy and ClusterTopologyPolicy: specs of the custom resources' own types.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::error::ObjectError;
use super::field::{Metadata, or_default};
use super::names::Names;
use crate::crd::{
    ClusterTopologyPolicySpec, LabelSelector, PolicyStatus, Rules, TopologyPolicySpec,
};
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::topology_policy::Reported;
use topo_lb_core::cluster::{PolicyId, TopologyPolicy};

#[derive(Deserialize)]
#[serde(expecting = "an object", bound(deserialize = "S: Default + Deserialize<'de>"))]
pub(super) struct Fields<S> {
    metadata: Metadata<IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    spec: S,
    /// Only topo-lb writes it; in a file it may be anything.
    #[serde(default)]
    status: Value,
}

impl<S: Into<ClusterTopologyPolicySpec>> Fields<S> {
    pub(super) fn keep(
        self,
        names: &mut Names,
        has_namespace: bool,
    ) -> Result<TopologyPolicy, ObjectError> {
        let Self { metadata, spec, status } = self;
        let spec: ClusterTopologyPolicySpec = spec.into();
        let namespace = if has_namespace { metadata.namespace() } else { "" };
        Ok(TopologyPolicy {
            id: PolicyId { namespace: names.share(namespace), name: names.share(&metadata.name) },
            created: metadata.created(),
            generation: metadata.generation(),
            precedence: spec.precedence,
            namespaces: (&spec.namespace_selector).into(),
            services: (&spec.service_selector).into(),
            policy: Arc::new(sources(spec.rules)?),
            reported: reported(status),
        })
    }
}

impl From<TopologyPolicySpec> for ClusterTopologyPolicySpec {
    fn from(spec: TopologyPolicySpec) -> Self {
        let TopologyPolicySpec { service_selector, precedence, rules } = spec;
        Self { namespace_selector: LabelSelector::default(), service_selector, precedence, rules }
    }
}

fn reported(status: Value) -> Reported {
    let status: Option<PolicyStatus> = serde_json::from_value(status).unwrap_or_default();
    Reported(status.map(Arc::new))
}

/// In a text of keys, a comma separates them: a key with one would become two.
fn sources(rules: Rules) -> Result<PolicySources, ObjectError> {
    match rules.external_topology_keys.iter().flatten().find(|key| key.contains(',')) {
        Some(key) => {
            let reason = format!("{key:?} is no label name: write one in each element");
            Err(ObjectError::at("spec.externalTopologyKeys", reason))
        }
        None => Ok(rules.into()),
    }
}

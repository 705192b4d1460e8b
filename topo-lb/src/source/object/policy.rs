//! TopologyPolicy and ClusterTopologyPolicy: specs of the custom resources' own types.

use std::sync::Arc;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::Names;
use super::field::{Metadata, or_default};
use crate::cluster::selector::Selector;
use crate::cluster::{ClusterTopologyPolicy, PolicyId, TopologyPolicy};
use crate::crd::{ClusterTopologyPolicySpec, TopologyPolicySpec};

#[derive(Deserialize)]
#[serde(expecting = "an object", bound(deserialize = "S: Default + Deserialize<'de>"))]
pub(super) struct Fields<S> {
    metadata: Metadata<IgnoredAny>,
    #[serde(default, deserialize_with = "or_default")]
    spec: S,
}

impl Fields<TopologyPolicySpec> {
    pub(super) fn keep(self, names: &mut Names) -> TopologyPolicy {
        let Self { metadata, spec } = self;
        TopologyPolicy {
            id: PolicyId {
                namespace: names.share(metadata.namespace()),
                name: names.share(&metadata.name),
            },
            created: metadata.created().map(Into::into),
            generation: metadata.generation(),
            precedence: spec.precedence,
            namespaces: Selector::default(),
            services: (&spec.service_selector).into(),
            policy: Arc::new(spec.rules.into()),
        }
    }
}

impl Fields<ClusterTopologyPolicySpec> {
    pub(super) fn keep(self, names: &mut Names) -> ClusterTopologyPolicy {
        let Self { metadata, spec } = self;
        ClusterTopologyPolicy(TopologyPolicy {
            id: PolicyId { namespace: Arc::default(), name: names.share(&metadata.name) },
            created: metadata.created().map(Into::into),
            generation: metadata.generation(),
            precedence: spec.precedence,
            namespaces: (&spec.namespace_selector).into(),
            services: (&spec.service_selector).into(),
            policy: Arc::new(spec.rules.into()),
        })
    }
}

//! Namespace: only its metadata.

use serde::Deserialize;

use super::field::{Loose, Metadata};
use super::names::Names;
use super::service::Annotations;
use topo_lb_core::cluster::Namespace;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Fields {
    metadata: Metadata<Loose, Annotations>,
}

impl Fields {
    pub(super) fn keep(self, names: &mut Names) -> Namespace {
        let metadata = self.metadata;
        Namespace {
            name: names.share(&metadata.name),
            labels: metadata.labels.labels(names),
            policy: metadata.annotations.of_namespace(names).into(),
        }
    }
}

//! Node: only its metadata.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::field::Metadata;
use super::names::Names;
use topo_lb_core::cluster::Node;

#[derive(Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Fields {
    metadata: Metadata<BTreeMap<String, String>>,
}

impl Fields {
    pub(super) fn keep(self, names: &mut Names) -> Node {
        let Metadata { name, labels, .. } = self.metadata;
        Node {
            name: names.share(&name),
            labels: labels
                .iter()
                .map(|(key, value)| (names.share(key), names.share(value)))
                .collect(),
        }
    }
}

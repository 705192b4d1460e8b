//! Pod: its identity and the annotations that say how its connections are treated.

use serde::Deserialize;

use super::field::{DEFAULT_NAMESPACE, Text, or_default};
use super::names::Names;
use topo_lb_core::exclusion::Pod;

#[derive(Deserialize)]
pub(super) struct Fields {
    metadata: Metadata,
}

#[derive(Deserialize)]
struct Metadata {
    uid: String,
    name: String,
    #[serde(default, deserialize_with = "or_default")]
    namespace: String,
    #[serde(default, deserialize_with = "or_default")]
    annotations: Annotations,
}

#[derive(Default, Deserialize)]
struct Annotations {
    #[serde(rename = "topo-lb.io/exclude")]
    exclude: Option<Text>,
    #[serde(rename = "topo-lb.io/steer")]
    steer: Option<Text>,
}

impl Fields {
    pub(super) fn keep(self, names: &mut Names) -> Pod {
        let Metadata { uid, name, namespace, annotations } = self.metadata;
        let namespace = if namespace.is_empty() { DEFAULT_NAMESPACE } else { &namespace };
        Pod {
            uid: uid.into(),
            namespace: names.share(namespace),
            name: name.into(),
            exclude: annotations.exclude.map(|Text(text)| text.into()),
            steer: annotations.steer.map(|Text(text)| text.into()),
        }
    }
}

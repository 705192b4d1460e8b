//! Node: whether it is about to leave, as kube-proxy sees it (`SyncNode`, proxy_health.go).

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::field::or_default;
use topo_lb_core::cluster::Leaving;

/// The taint that cluster-autoscaler puts on a Node before it deletes it.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

#[derive(Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct Fields {
    metadata: Metadata,
    #[serde(default, deserialize_with = "or_default")]
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", expecting = "an object")]
struct Metadata {
    deletion_timestamp: Option<IgnoredAny>,
}

#[derive(Default, Deserialize)]
#[serde(expecting = "an object")]
struct Spec {
    #[serde(default, deserialize_with = "or_default")]
    taints: Vec<Taint>,
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Taint {
    key: String,
}

impl Fields {
    pub(super) fn keep(&self) -> Leaving {
        let is_tainted = self.spec.taints.iter().any(|taint| taint.key == TO_BE_DELETED);
        Leaving(is_tainted || self.metadata.deletion_timestamp.is_some())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Names, Parsed as _};
    use super::*;

    #[test]
    fn a_node_leaves_when_it_is_deleted_or_the_autoscaler_says_so() {
        for (metadata, taints, wanted) in [
            (json!({}), json!(null), false),
            (json!({}), json!([{"key": "other", "effect": "NoSchedule"}]), false),
            (json!({}), json!([{"key": "other"}, {"key": TO_BE_DELETED, "value": "1"}]), true),
            (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), json!([]), true),
            (json!({"deletionTimestamp": null}), json!([]), false),
        ] {
            let node = json!({"metadata": metadata, "spec": {"taints": taints}});
            let (leaving, _) = Leaving::parsed(&node, &mut Names::default()).expect("a Node");
            assert_eq!(leaving, Leaving(wanted), "{node}");
        }
    }
}

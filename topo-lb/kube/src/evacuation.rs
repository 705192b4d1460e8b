//! Evacuations of a whole cluster: ClusterTopologyPolicies that `topo-lb evacuate` writes and `topo-lb restore` takes
//! back.

use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

use crate::crd::{ClusterTopologyPolicy, GROUP, VERSION};
use crate::source::kube::Server;

/// Who owns the fields that are written.
const MANAGER: &str = "topo-lb-evacuate";

/// Writes the policy of this name, or replaces it. `text`: as in `topo-lb.io/evacuate`.
///
/// # Errors
/// The API server refuses, or does not answer.
pub async fn write(server: &Server, name: &str, text: &str) -> kube::Result<()> {
    let patch = Patch::Apply(manifest(name, text));
    all(server).patch(name, &PatchParams::apply(MANAGER).force(), &patch).await.map(|_| ())
}

/// The object as it is written.
#[must_use]
pub fn manifest(name: &str, text: &str) -> serde_json::Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "ClusterTopologyPolicy",
        "metadata": {"name": name},
        "spec": {"evacuate": text},
    })
}

/// Deletes the policy of this name. Returns whether it was there.
///
/// # Errors
/// The API server refuses, or does not answer.
pub async fn delete(server: &Server, name: &str) -> kube::Result<bool> {
    match all(server).delete(name, &DeleteParams::default()).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => Err(error),
    }
}

/// The ClusterTopologyPolicies that evacuate something: name, and what.
///
/// # Errors
/// The API server refuses, or does not answer.
pub async fn list(server: &Server) -> kube::Result<Vec<(String, String)>> {
    let found = all(server).list(&ListParams::default()).await?;
    let of = |one: ClusterTopologyPolicy| Some((one.metadata.name?, one.spec.rules.evacuate?));
    Ok(found.into_iter().filter_map(of).collect())
}

fn all(server: &Server) -> Api<ClusterTopologyPolicy> {
    Api::all(server.client())
}

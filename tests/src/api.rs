//! Objects of an API server, made and changed as `kubectl` would.

use anyhow::{Context, Result};
use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::pod::Pod;

/// The objects of a kind: of the namespace `default`, if they are in any.
#[must_use]
pub fn of(client: &Client, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match kind {
        "Node" | "Namespace" | "ClusterRole" | "ClusterRoleBinding" => {
            Api::all_with(client.clone(), &resource)
        }
        _ => Api::namespaced_with(client.clone(), "default", &resource),
    }
}

/// Makes an object.
///
/// # Errors
/// The server refuses.
pub async fn create(client: &Client, object: &Value) -> Result<()> {
    let text = |field: &str| object[field].as_str().with_context(|| format!("no {field}"));
    let api = of(client, text("apiVersion")?, text("kind")?);
    let new: DynamicObject = serde_json::from_value(object.clone()).context("not an object")?;
    api.create(&PostParams::default(), &new)
        .await
        .with_context(|| format!("cannot make {object}"))?;
    Ok(())
}

/// Changes an object of the core group, by a JSON merge patch (RFC 7386).
///
/// # Errors
/// The server refuses, or has no such object.
pub async fn change(client: &Client, kind: &str, name: &str, patch: &Value) -> Result<()> {
    of(client, "v1", kind)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("cannot change {kind} {name}"))?;
    Ok(())
}

/// Sets a label of a node.
///
/// # Errors
/// As [`change`].
pub async fn relabel(client: &Client, node: &str, key: &str, value: &str) -> Result<()> {
    change(client, "Node", node, &json!({"metadata": {"labels": {key: value}}})).await
}

/// Makes a pod of the lab that runs, as the kubelet of its node would say, and is ready.
///
/// # Errors
/// The server refuses.
pub async fn run_pod(client: &Client, pod: &Pod, labels: &Value) -> Result<()> {
    let object = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": pod.name, "labels": labels},
        "spec": {"nodeName": pod.node, "containers": [{"name": "server", "image": "none"}]},
    });
    create(client, &object).await?;
    let addresses = json!([{"ip": pod.ipv4}, {"ip": pod.ipv6}]);
    let status = json!({"phase": "Running", "podIP": pod.ipv4, "podIPs": addresses});
    change_status(client, &pod.name, status).await?;
    set_ready(client, &pod.name, true).await
}

/// Says that a pod is ready, or not.
///
/// # Errors
/// The server refuses, or has no such pod.
pub async fn set_ready(client: &Client, pod: &str, ready: bool) -> Result<()> {
    let status = if ready { "True" } else { "False" };
    let conditions = json!({"conditions": [{"type": "Ready", "status": status}]});
    change_status(client, pod, conditions).await
}

async fn change_status(client: &Client, pod: &str, status: Value) -> Result<()> {
    of(client, "v1", "Pod")
        .patch_status(pod, &PatchParams::default(), &Patch::Merge(json!({"status": status})))
        .await
        .with_context(|| format!("cannot change the status of pod {pod}"))?;
    Ok(())
}

/// The rules of a role that reads these resources, each with its group, as an agent does.
#[must_use]
pub fn reading(resources: &[(&str, &str)]) -> Value {
    let rule = |(group, resource): &(&str, &str)| json!({"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]});
    resources.iter().map(rule).collect()
}

/// What an agent reads.
pub const READ: [(&str, &str); 3] =
    [("", "services"), ("", "nodes"), ("discovery.k8s.io", "endpointslices")];

/// The rules that an installation gives to its agents.
#[must_use]
pub fn installed() -> Value {
    let events = json!({"apiGroups": ["events.k8s.io"], "resources": ["events"],
                        "verbs": ["create", "patch"]});
    let mut rules = reading(&READ);
    rules.as_array_mut().expect("rules are a list").push(events);
    rules
}

/// Makes a role of these rules, and gives it to a user.
///
/// # Errors
/// The server refuses.
pub async fn allow(client: &Client, user: &str, role: &str, rules: &Value) -> Result<()> {
    let version = "rbac.authorization.k8s.io/v1";
    let metadata = json!({"name": role});
    create(
        client,
        &json!({"apiVersion": version, "kind": "ClusterRole", "metadata": metadata, "rules": rules}),
    )
    .await?;
    let group = "rbac.authorization.k8s.io";
    create(
        client,
        &json!({"apiVersion": version, "kind": "ClusterRoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": role},
                "subjects": [{"apiGroup": group, "kind": "User", "name": user}]}),
    )
    .await
}

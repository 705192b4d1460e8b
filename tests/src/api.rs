//! Creates and changes objects at an API server, as `kubectl` would.

use anyhow::{Context, Result};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::control_plane::{AGENT, ControlPlane};
use crate::kubernetes_1_20;
use crate::pod::Pod;

/// Group and resource of the objects that an agent reads.
pub const READ: [(&str, &str); 6] = [
    ("", "services"),
    ("", "nodes"),
    ("discovery.k8s.io", "endpointslices"),
    ("", "namespaces"),
    (POLICIES, "topologypolicies"),
    (POLICIES, "clustertopologypolicies"),
];
/// The API group of policies.
const POLICIES: &str = "topo-lb.io";

/// Each method sends one request, or one request per object, as the administrator.
impl ControlPlane<'_> {
    /// Creates objects in `default`; EndpointSlices in the version that this server has.
    pub fn create(&self, objects: impl IntoIterator<Item = Value> + Send) -> Result<()> {
        let old = self.has_topology_keys()?;
        self.ask(async |client| {
            for object in objects {
                let object = if old { kubernetes_1_20::slice(object) } else { object };
                create(&client, &object).await?;
            }
            Ok(())
        })
    }

    /// Changes an object of the core group with a JSON merge patch (RFC 7386).
    pub fn change(&self, kind: &str, name: &str, patch: &Value) -> Result<()> {
        self.ask(async |client| change(&client, kind, name, patch).await)
    }

    /// Works with the objects of a kind, in any version of its API.
    pub fn with<T: Send>(
        &self,
        version: &str,
        kind: &str,
        work: impl AsyncFnOnce(Api<DynamicObject>) -> Result<T> + Send,
    ) -> Result<T> {
        self.ask(async |client| work(of(&client, version, kind)).await)
    }

    /// Sets an annotation of a Service, or removes it.
    pub fn annotate(&self, service: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.change("Service", service, &json!({"metadata": {"annotations": {key: value}}}))
    }

    /// Sets a label of a node, or removes it.
    pub fn relabel(&self, node: &str, key: &str, value: Option<&str>) -> Result<()> {
        self.change("Node", node, &json!({"metadata": {"labels": {key: value}}}))
    }

    /// Deletes objects of `default`, or nodes, without a grace period.
    ///
    /// # Errors
    /// The server refuses, or has no such object.
    pub fn delete(&self, kind: &str, names: &[&str]) -> Result<()> {
        let version = if kind == "EndpointSlice" { self.slice_version()? } else { "v1" };
        self.ask(async |client| {
            for name in names {
                delete(&of(&client, version, kind), name).await?;
            }
            Ok(())
        })
    }

    /// Lists all objects of a kind in `default`, or all nodes.
    pub fn list(&self, kind: &str) -> Result<Vec<DynamicObject>> {
        let version = match kind {
            "EndpointSlice" => self.slice_version()?,
            "Event" => "events.k8s.io/v1",
            _ => "v1",
        };
        self.ask(async |client| {
            let listed = of(&client, version, kind).list(&ListParams::default()).await;
            Ok(listed.with_context(|| format!("cannot list each {kind}"))?.items)
        })
    }

    /// Deletes all nodes, and all Pods, Services and EndpointSlices of `default`; from the Service
    /// `kubernetes` it removes only the annotations.
    pub fn clear(&self) -> Result<()> {
        let slices = self.slice_version()?;
        self.ask(async |client| {
            let kinds =
                [("v1", "Service"), ("v1", "Pod"), (slices, "EndpointSlice"), ("v1", "Node")];
            for (version, kind) in kinds {
                let objects = of(&client, version, kind);
                for object in objects.list(&ListParams::default()).await?.items {
                    let name = object.metadata.name.unwrap_or_default();
                    if kind == "Service" && name == "kubernetes" {
                        let none = json!({"metadata": {"annotations": null}});
                        change(&client, kind, &name, &none).await?;
                    } else if let Err(error) = delete(&objects, &name).await {
                        // A controller may delete slices too.
                        let is_gone = format!("{error:#}").contains("not found");
                        is_gone.then_some(()).ok_or(error)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Creates ready, running Pods with the label `app` for pods of the lab.
    pub fn run_pods<'p>(
        &self,
        app: &str,
        pods: impl IntoIterator<Item = &'p Pod> + Send,
    ) -> Result<()> {
        self.ask(async |client| {
            for pod in pods {
                run_pod(&client, pod, &json!({"app": app})).await?;
            }
            Ok(())
        })
    }

    /// Sets whether pods are ready.
    pub fn set_ready(&self, pods: &[&str], ready: bool) -> Result<()> {
        self.ask(async |client| {
            for pod in pods {
                set_ready(&client, pod, ready).await?;
            }
            Ok(())
        })
    }

    /// Grants these rules to [`AGENT`] with a role of this name.
    pub fn allow(&self, role: &str, rules: &Value) -> Result<()> {
        self.ask(async |client| allow(&client, AGENT, role, rules).await)
    }
}

/// Deletes an object without a grace period.
async fn delete(objects: &Api<DynamicObject>, name: &str) -> Result<()> {
    let now = DeleteParams::default().grace_period(0);
    objects.delete(name, &now).await.map(drop).with_context(|| format!("cannot delete {name}"))
}

/// The objects of a kind; namespaced ones in `default`.
#[must_use]
pub fn of(client: &Client, version: &str, kind: &str) -> Api<DynamicObject> {
    let (group, version) = version.rsplit_once('/').unwrap_or(("", version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match kind {
        "Node"
        | "Namespace"
        | "ClusterRole"
        | "ClusterRoleBinding"
        | "ClusterTopologyPolicy"
        | "CustomResourceDefinition" => Api::all_with(client.clone(), &resource),
        _ => Api::namespaced_with(client.clone(), "default", &resource),
    }
}

/// Creates an object.
pub async fn create(client: &Client, object: &Value) -> Result<()> {
    let text = |field: &str| object[field].as_str().with_context(|| format!("no {field}"));
    let api = of(client, text("apiVersion")?, text("kind")?);
    let new: DynamicObject = serde_json::from_value(object.clone()).context("not an object")?;
    api.create(&PostParams::default(), &new)
        .await
        .with_context(|| format!("cannot make {object}"))?;
    Ok(())
}

/// Changes an object of the core group with a JSON merge patch (RFC 7386).
pub async fn change(client: &Client, kind: &str, name: &str, patch: &Value) -> Result<()> {
    of(client, "v1", kind)
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .with_context(|| format!("cannot change {kind} {name}"))?;
    Ok(())
}

/// Sets a label of a node.
pub async fn relabel(client: &Client, node: &str, key: &str, value: &str) -> Result<()> {
    change(client, "Node", node, &json!({"metadata": {"labels": {key: value}}})).await
}

/// Creates a ready, running Pod for a pod of the lab, with a kubelet's status.
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

/// Sets whether a pod is ready, and since when, as its kubelet does.
pub async fn set_ready(client: &Client, pod: &str, ready: bool) -> Result<()> {
    let status = if ready { "True" } else { "False" };
    let now = Timestamp::now().to_string();
    let conditions =
        json!({"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": now}]});
    change_status(client, pod, conditions).await
}

async fn change_status(client: &Client, pod: &str, status: Value) -> Result<()> {
    of(client, "v1", "Pod")
        .patch_status(pod, &PatchParams::default(), &Patch::Merge(json!({"status": status})))
        .await
        .with_context(|| format!("cannot change the status of pod {pod}"))?;
    Ok(())
}

/// The rules of a role that lists and watches these resources (group, resource), as an agent does.
#[must_use]
pub fn reading(resources: &[(&str, &str)]) -> Value {
    let rule = |(group, resource): &(&str, &str)| json!({"apiGroups": [group], "resources": [resource], "verbs": ["list", "watch"]});
    resources.iter().map(rule).collect()
}

/// The rules that an installation grants to its agents.
#[must_use]
pub fn installed() -> Value {
    let events = json!({"apiGroups": ["events.k8s.io"], "resources": ["events"],
                        "verbs": ["create", "patch"]});
    let statuses = json!({"apiGroups": [POLICIES], "verbs": ["patch"],
                          "resources": ["topologypolicies/status", "clustertopologypolicies/status"]});
    let mut rules = reading(&READ);
    rules.as_array_mut().expect("rules are a list").extend([events, statuses]);
    rules
}

/// Creates a role with these rules and binds it to a user.
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

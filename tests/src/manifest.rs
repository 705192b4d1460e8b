//! The agents' manifests: Kubernetes objects in a folder, changed like objects of a cluster.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fs_err as fs;
use serde_json::{Value, json};

/// Objects from a real control plane of Kubernetes 1.36: three nodes in three pools, the Services
/// of the OpenYurt tutorial, and others.
pub const KUBERNETES_1_36: &str = include_str!("../fixtures/kubernetes-1.36.json");

/// The label with the name of a slice's Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Objects, and their folder.
#[derive(Debug)]
pub struct Manifests {
    folder: PathBuf,
    staging: PathBuf,
    items: Vec<Value>,
}

impl Manifests {
    /// An empty set for the folder `manifests` in `folder`.
    pub fn new(folder: &Path) -> Result<Self> {
        let staging = folder.to_path_buf();
        let folder = folder.join("manifests");
        fs::create_dir(&folder)?;
        Ok(Self { folder, staging, items: Vec::new() })
    }

    /// The folder, for `--manifests`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file with all objects.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.join("cluster.json")
    }

    /// Adds every object of a `List`.
    ///
    /// # Errors
    /// The text is not a list in JSON.
    pub fn add_list(&mut self, text: &str) -> Result<()> {
        let mut list: Value = serde_json::from_str(text).context("a list that is not JSON")?;
        let items = list["items"].as_array_mut().context("a list without items")?;
        for item in std::mem::take(items) {
            self.put(item);
        }
        Ok(())
    }

    /// Adds an object, or replaces the one with the same kind, namespace and name.
    pub fn put(&mut self, object: Value) {
        let same = |other: &&mut Value| {
            other["kind"] == object["kind"]
                && other["metadata"]["name"] == object["metadata"]["name"]
                && other["metadata"]["namespace"] == object["metadata"]["namespace"]
        };
        match self.items.iter_mut().find(same) {
            Some(old) => *old = object,
            None => self.items.push(object),
        }
    }

    /// The object of this kind and name, for changes.
    pub fn get(&mut self, kind: &str, name: &str) -> Result<&mut Value> {
        let wanted = |item: &&mut Value| item["kind"] == kind && item["metadata"]["name"] == name;
        let found = self.items.iter_mut().find(wanted);
        found.with_context(|| format!("the manifests hold no {kind} {name}"))
    }

    /// Removes an object.
    pub fn remove(&mut self, kind: &str, name: &str) {
        self.items.retain(|item| item["kind"] != kind || item["metadata"]["name"] != name);
    }

    /// Sets or removes an annotation.
    pub fn annotate(&mut self, service: &str, key: &str, value: Option<&str>) -> Result<()> {
        let metadata = &mut self.get("Service", service)?["metadata"];
        if !metadata["annotations"].is_object() {
            metadata["annotations"] = json!({});
        }
        // Assigning null would keep the key.
        if let Some(annotations) = metadata["annotations"].as_object_mut() {
            match value {
                Some(value) => annotations.insert(key.into(), value.into()),
                None => annotations.remove(key),
            };
        }
        Ok(())
    }

    /// Sets a label of a node.
    pub fn relabel(&mut self, node: &str, key: &str, value: &str) -> Result<()> {
        self.get("Node", node)?["metadata"]["labels"][key] = value.into();
        Ok(())
    }

    /// Sets the conditions of all endpoints of the pod `pod`.
    pub fn set_conditions(&mut self, pod: &str, conditions: &Value) {
        for endpoint in self.endpoints() {
            if endpoint["targetRef"]["name"] == pod {
                endpoint["conditions"] = conditions.clone();
            }
        }
    }

    /// Sets whether all endpoints of a pod are ready.
    pub fn set_ready(&mut self, pod: &str, ready: bool) {
        let conditions = json!({"ready": ready, "serving": ready, "terminating": false});
        self.set_conditions(pod, &conditions);
    }

    fn endpoints(&mut self) -> impl Iterator<Item = &mut Value> {
        let slices = self.items.iter_mut().filter(|item| item["kind"] == "EndpointSlice");
        slices.filter_map(|slice| slice["endpoints"].as_array_mut()).flatten()
    }

    /// Writes all objects; a reader sees either the old or the new file, complete.
    pub fn write(&self) -> Result<()> {
        self.replace(&json!({"apiVersion": "v1", "kind": "List", "items": self.items}).to_string())
    }

    /// Replaces the file by any text.
    pub fn replace(&self, text: &str) -> Result<()> {
        let staged = self.staging.join("cluster.json");
        fs::write(&staged, text)?;
        Ok(fs::rename(&staged, self.file())?)
    }
}

/// A Node.
#[must_use]
pub fn node(name: &str, labels: &[(&str, &str)]) -> Value {
    let mut metadata = json!({"name": name, "labels": {"kubernetes.io/hostname": name}});
    for (key, value) in labels {
        metadata["labels"][key] = (*value).into();
    }
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})
}

/// A port of a Service or a slice: name, number, protocol.
pub type Port<'a> = (&'a str, u16, &'a str);

/// A Service in `default`.
#[must_use]
pub fn service(
    name: &str,
    addresses: &[&str],
    ports: &[Port<'_>],
    annotations: &[(&str, &str)],
) -> Value {
    let family = |address: &&str| if address.contains(':') { "IPv6" } else { "IPv4" };
    let mut metadata = json!({"name": name, "namespace": "default", "annotations": {}});
    for (key, value) in annotations {
        metadata["annotations"][key] = (*value).into();
    }
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {
            "type": "ClusterIP",
            "clusterIP": addresses.first(),
            "clusterIPs": addresses,
            "ipFamilies": addresses.iter().map(family).collect::<Vec<_>>(),
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": ports.iter().map(port).collect::<Vec<_>>(),
        },
    })
}

/// An EndpointSlice of the Service `service`; `family` is `IPv4` or `IPv6`.
#[must_use]
pub fn slice(service: &str, family: &str, ports: &[Port<'_>], endpoints: &[Value]) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {
            "name": format!("{service}-{}", family.to_lowercase()), "namespace": "default",
            "labels": {SERVICE_NAME: service},
        },
        "ports": ports.iter().map(port).collect::<Vec<_>>(),
        "endpoints": endpoints,
    })
}

fn port(&(name, number, protocol): &Port<'_>) -> Value {
    json!({"name": name, "port": number, "protocol": protocol})
}

/// A ready endpoint: the pod `pod` on the node `node`.
#[must_use]
pub fn endpoint(address: &str, node: &str, pod: &str) -> Value {
    json!({
        "addresses": [address], "nodeName": node,
        "conditions": {"ready": true, "serving": true, "terminating": false},
        "targetRef": {"kind": "Pod", "namespace": "default", "name": pod},
    })
}

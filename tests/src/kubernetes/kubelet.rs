//! The kubelet of a node.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use fs_err as fs;
use serde_json::{Value, json};

use crate::process::Running;
use crate::wiring::fabric4;

use super::containerd::SOCKET;
use super::machine::Machine;
use super::parts::Parts;

/// What a kubelet is told.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) kubeconfig: PathBuf,
    /// The node's address.
    pub(crate) address: String,
    /// The node's labels, as an object.
    pub(crate) labels: Value,
    /// The address of the cluster's DNS server for pods.
    pub(crate) dns: String,
}

/// Starts the kubelet.
pub(crate) fn start(machine: &Machine<'_>, parts: &Parts, settings: &Settings) -> Result<Running> {
    let folder = machine.folder();
    // The node itself asks the lab's server.
    let resolver = folder.join("resolv.conf");
    fs::write(&resolver, format!("nameserver {}\n", fabric4()))?;
    let config = json!({
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        // Only the lab reaches the node's network.
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": machine.cgroup_root(),
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        // Ready a few seconds after its start, not up to ten.
        "nodeStatusUpdateFrequency": "2s",
        "clusterDNS": [settings.dns],
        "clusterDomain": "cluster.local",
        "resolvConf": resolver,
        // The disk is the machine's, and images cannot be pulled again.
        "evictionHard": {
            "memory.available": "1Mi", "nodefs.available": "0%", "nodefs.inodesFree": "0%",
            "imagefs.available": "0%",
        },
        "imageGCHighThresholdPercent": 100,
        // Unknown to old kubelets, which ignore it.
        "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
        "localStorageCapacityIsolation": false,
        "failCgroupV1": false,
    });
    let path = folder.join("kubelet.json");
    fs::write(&path, config.to_string())?;
    let labels = settings.labels.as_object().into_iter().flatten();
    let labels: Vec<_> = labels
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    let mut command = Command::new(parts.kubernetes("kubelet")?);
    command
        .envs(parts.environment(&folder.join("bin"))?)
        .arg(format!("--config={}", path.display()))
        .arg(format!("--kubeconfig={}", settings.kubeconfig.display()))
        .arg(format!("--hostname-override={}", machine.node.name))
        .arg(format!("--node-ip={}", settings.address))
        .arg(format!("--node-labels={}", labels.join(",")));
    // Later kubelets have these in the file.
    if parts.minor()? < 24 {
        command.arg("--container-runtime=remote");
    }
    if parts.minor()? < 25 {
        command.arg("--feature-gates=LocalStorageCapacityIsolation=false");
    }
    if parts.minor()? < 27 {
        command.arg(format!("--container-runtime-endpoint=unix://{SOCKET}"));
    }
    machine.start("kubelet", command)
}

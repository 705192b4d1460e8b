//! A node of the cluster: its machine, and the programs that run there.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use fs_err as fs;
use rustix::process::Pid;
use serde_json::Value;

use crate::cluster::Cluster;
use crate::control_plane::{ADMINISTRATOR, ControlPlane};
use crate::node::Node;
use crate::objects::Objects;
use crate::process::Running;
use crate::wiring::{node4, pod4};

use super::kubelet::Settings;
use super::machine::Machine;
use super::parts::Parts;
use super::{Proxy, containerd, kube_proxy, kubelet};

/// How many lines of a log an error quotes.
const QUOTED_LINES: usize = 20;

/// A node with its programs. Dropping it ends them.
#[derive(Debug)]
pub struct Worker<'a> {
    kube_proxy: Option<Running>,
    kubelet: Running,
    containerd: Running,
    parts: Parts,
    /// What the kubelet is started with, also again.
    settings: Settings,
    machine: Machine<'a>,
}

impl<'a> Worker<'a> {
    pub(crate) fn start(
        cluster: &Cluster,
        plane: &ControlPlane<'_>,
        parts: &Parts,
        node: &'a Node,
        labels: &Value,
        dns: &str,
        proxy: Proxy,
    ) -> Result<Self> {
        let number = cluster.nodes().iter().position(|other| other.name == node.name);
        let number = u8::try_from(number.context("a node of the cluster")?)?;
        let pods = format!("{}/24", pod4(number, 0));
        // Packets to a pod that is gone would otherwise go in circles.
        node.netns.ip(&[format!("route add unreachable {pods}")])?;
        let machine = Machine::make(cluster, node)?;
        let containerd = containerd::start(&machine, parts, &pods)?;
        let settings = Settings {
            kubeconfig: plane.kubeconfig_of(&node.name, ADMINISTRATOR)?,
            address: node4(number).to_string(),
            labels: labels.clone(),
            dns: dns.to_owned(),
        };
        let kubelet = kubelet::start(&machine, parts, &settings)?;
        let kube_proxy = proxy
            .has_kube_proxy()
            .then(|| kube_proxy::start(&machine, parts, &settings.kubeconfig))
            .transpose()?;
        Ok(Self { kube_proxy, kubelet, containerd, parts: parts.clone(), settings, machine })
    }

    /// The node's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.machine.node.name
    }

    /// The node's address.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.settings.address
    }

    /// Ends the kubelet with SIGKILL; its pods stay.
    pub fn kill_kubelet(&mut self) {
        self.kubelet.kill();
    }

    /// Starts the kubelet again.
    pub fn start_kubelet(&mut self) -> Result<()> {
        self.kubelet = kubelet::start(&self.machine, &self.parts, &self.settings)?;
        Ok(())
    }

    /// Names and process ids of its programs.
    #[must_use]
    pub fn programs(&self) -> Vec<(&'static str, u32)> {
        let mut all = vec![("containerd", self.containerd.id()), ("kubelet", self.kubelet.id())];
        all.extend(self.kube_proxy.as_ref().map(|it| ("kube-proxy", it.id())));
        all
    }

    /// The process with this name in the node's network, as an agent's is.
    pub fn process(&self, name: &str) -> Result<Pid> {
        let network = |id: &str| fs::read_link(Path::new("/proc").join(id).join("ns/net"));
        let own = network(&self.containerd.id().to_string())?;
        for entry in fs::read_dir("/proc")?.flatten() {
            let id = entry.file_name().to_string_lossy().into_owned();
            // Processes may end meanwhile.
            let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if comm.trim() == name && network(&id).is_ok_and(|it| it == own) {
                return Pid::from_raw(id.parse()?).context("a process has a number");
            }
        }
        bail!("no {name} runs on {}", self.name())
    }

    /// What an agent has made in the node's kernel, by its pins.
    pub fn objects(&self) -> Result<Objects> {
        Objects::pinned(&self.seen("sys/fs/bpf/topo-lb"))
    }

    /// The path outside the node of a path on it, without the first slash.
    #[must_use]
    pub fn seen(&self, path: &str) -> PathBuf {
        Path::new("/proc").join(self.containerd.id().to_string()).join("root").join(path)
    }

    /// Runs a command on the node, and returns its output.
    pub fn run(&self, command: std::process::Command) -> Result<String> {
        self.machine.run(command)
    }

    /// The last lines of a program's log.
    #[must_use]
    pub fn end_of_log(&self, program: &str) -> String {
        let path = self.machine.log(program);
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let quoted = lines[lines.len().saturating_sub(QUOTED_LINES)..].join("\n");
        format!("{}:\n{quoted}\n", path.display())
    }
}

//! A real cluster on the lab's nodes: a control plane on the fabric, and on each node containerd,
//! a kubelet and, unless topo-lb takes its place, kube-proxy, with mounts, cgroups and a bpffs of the
//! node's own.
//!
//! ```text
//!  fabric: etcd, kube-apiserver, controllers, scheduler, cluster DNS; the machine's loopback ─▶ API
//!  node-a (zone a, region north): containerd, kubelet, kube-proxy │ pods 10.244.0.0/24
//!  node-b (zone b, region north): containerd, kubelet, kube-proxy │ pods 10.244.1.0/24
//! ```
//!
//! Two nodes are in each region: node-c and node-d are in south.
//!
//! Everything lives in the lab's cluster, which removes it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::cluster::Cluster;
use crate::control_plane::{ADMINISTRATOR, ControlPlane};
use crate::deployment::{NAME, compose, kubectl};
use crate::kind::POOL;
use crate::node::NodePlan;
use crate::progress::Progress;
use crate::scene::{REGION, ZONE};
use crate::wait::until;

use self::dns::Dns;
use self::door::Door;
use self::worker::Worker;

pub(crate) mod background;
mod containerd;
pub mod dns;
pub mod door;
mod kube_proxy;
mod kubelet;
mod machine;
mod mounts;
pub mod parts;
pub mod state;
pub mod worker;

use self::parts::Parts;

/// The most nodes: each takes some 150 MB of memory and a share of the processors.
pub const MOST_NODES: u8 = 9;

/// The node pools, as in the OpenYurt tutorial; later nodes join them again.
const POOLS: [&str; 3] = ["hangzhou", "shanghai", "beijing"];

/// The tag of topo-lb's own image.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The tag of the image of topo-lb's last release, if [`Parts::last_release`].
pub const LAST_RELEASE: &str = "last-release";

/// `kubectl apply` for a server that has only just started: kubectl cannot validate before the server has put
/// together its OpenAPI. The server itself refuses unknown fields of what is applied on its side.
const APPLY: [&str; 2] = ["apply", "--validate=false"];

/// How long nodes and agents may take to get ready.
const PATIENCE: Duration = Duration::from_secs(120);

/// What handles Services on the nodes.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Proxy {
    /// topo-lb in place of kube-proxy.
    TopoLb,
    /// topo-lb for all Services, beside kube-proxy.
    #[value(name = "topo-lb+kube-proxy")]
    #[serde(rename = "topo-lb+kube-proxy")]
    Beside,
    /// kube-proxy alone.
    KubeProxy,
    /// Nothing: ClusterIPs do not work.
    None,
}

impl Proxy {
    /// The value on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::TopoLb => "topo-lb",
            Self::Beside => "topo-lb+kube-proxy",
            Self::KubeProxy => "kube-proxy",
            Self::None => "none",
        }
    }

    /// Whether kube-proxy runs on the nodes.
    #[must_use]
    pub fn has_kube_proxy(self) -> bool {
        matches!(self, Self::Beside | Self::KubeProxy)
    }

    /// The overlay of deploy/ that is applied, if topo-lb runs on the nodes.
    pub fn overlay(self) -> Option<&'static str> {
        match self {
            Self::TopoLb => Some("kube-proxy-replacement"),
            Self::Beside => Some("all"),
            Self::KubeProxy | Self::None => None,
        }
    }
}

/// The names of `count` nodes: `node-a`, `node-b`, ….
#[must_use]
pub fn names(count: u8) -> Vec<String> {
    (b'a'..).take(count.into()).map(|letter| format!("node-{}", char::from(letter))).collect()
}

/// The plan of the lab for nodes with these names.
#[must_use]
pub fn plan(names: &[String]) -> Vec<NodePlan<'_>> {
    let node = |(name, number)| NodePlan { name, number, pods: Vec::new() };
    names.iter().map(String::as_str).zip(0..).map(node).collect()
}

/// A patch of the DaemonSet for kubelets that find out soon that an agent is ready, or hangs.
const FREQUENT_PROBES: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: topo-lb}
spec:
  template:
    spec:
      containers:
        - name: agent
          livenessProbe: {periodSeconds: 2, timeoutSeconds: 5}
          readinessProbe: {periodSeconds: 1, timeoutSeconds: 2}
";

/// The external IPs that agents without kube-proxy serve: documentation's (RFC 5737, TEST-NET-3), one of which
/// a spec of Kubernetes' own tests dials.
const EXTERNAL_IPS: &str = "203.0.113.0/24";

/// A patch of the DaemonSet for agents without kube-proxy, which cannot begin with a ClusterIP.
fn alone(server: SocketAddr) -> serde_json::Value {
    let (host, port) = (server.ip().to_string(), server.port().to_string());
    let variables = json!([
        {"name": "KUBERNETES_SERVICE_HOST", "value": host},
        {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        {"name": "TOPO_LB_EXTERNAL_IP_RANGES", "value": EXTERNAL_IPS},
    ]);
    let agent = json!({"name": "agent", "env": variables});
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": NAME},
        "spec": {"template": {"spec": {"containers": [agent]}}},
    })
}

/// The regions: two nodes are in the first, two in the second; later ones join them again.
const REGIONS: [&str; 4] = ["north", "north", "south", "south"];

/// The zone of a node: the letter of its name.
#[must_use]
pub fn zone(node: &str) -> &str {
    node.rsplit('-').next().unwrap_or(node)
}

/// The cluster. Dropping it ends its processes.
#[derive(Debug)]
pub struct Kubernetes<'a> {
    cluster: &'a Cluster,
    /// The machine's way to the API server.
    door: Door,
    _dns: Dns,
    workers: Vec<Worker<'a>>,
    plane: ControlPlane<'a>,
}

impl<'a> Kubernetes<'a> {
    /// Starts everything, and waits until every node, and the DaemonSet of topo-lb, is ready.
    ///
    /// # Errors
    /// A part is missing or does not get ready.
    pub fn start(
        cluster: &'a Cluster,
        parts: &Parts,
        proxy: Proxy,
        progress: Progress,
    ) -> Result<Self> {
        let title = format!("control plane of Kubernetes {}", parts.version()?);
        let plane = progress.step(&title, || {
            let mut plane = ControlPlane::of_kubelets(cluster, parts.folder())?;
            plane.start_all_controllers()?;
            Ok(plane)
        })?;
        let dns = Dns::start(cluster, &plane)?;
        let door = Door::open(cluster, plane.server())?;
        let title = format!("{} nodes: containerd, images, kubelet", cluster.nodes().len());
        let workers = progress.step(&title, || start_workers(cluster, &plane, parts, proxy))?;
        let it = Self { cluster, door, _dns: dns, workers, plane };
        progress.step("nodes are ready", || it.wait_for_nodes())?;
        if let Some(overlay) = proxy.overlay() {
            progress.step("DaemonSet of topo-lb is ready", || {
                it.apply(overlay, &[])?;
                it.wait_for_agents()
            })?;
        }
        Ok(it)
    }

    /// The API server and its controllers.
    #[must_use]
    pub fn plane(&self) -> &ControlPlane<'a> {
        &self.plane
    }

    /// The API server and its controllers, to stop and start them.
    pub fn plane_mut(&mut self) -> &mut ControlPlane<'a> {
        &mut self.plane
    }

    /// The nodes.
    #[must_use]
    pub fn workers(&self) -> &[Worker<'a>] {
        &self.workers
    }

    /// The node with this name.
    pub fn worker(&mut self, name: &str) -> Result<&mut Worker<'a>> {
        let found = self.workers.iter_mut().find(|worker| worker.name() == name);
        found.with_context(|| format!("there is no node {name}"))
    }

    /// A kubeconfig that works on the machine itself.
    pub fn kubeconfig(&self) -> Result<PathBuf> {
        let server = format!("https://localhost:{}", self.door.port());
        self.plane.kubeconfig_at("machine", ADMINISTRATOR, &server)
    }

    /// Runs kubectl as the administrator, and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.plane.administer(&kubectl()?, arguments)
    }

    /// Applies an overlay of deploy/ with components, and with those that this machine needs. The
    /// kubelets ask agents every second whether they are ready, which saves time.
    pub fn apply(&self, overlay: &str, components: &[&str]) -> Result<()> {
        let folder = self.cluster.folder().join("overlay");
        fs_err::create_dir_all(&folder)?;
        let mut all = components.to_vec();
        all.extend(self.surroundings()?);
        let has_agent = overlay != "cleanup";
        let mut patches = Vec::new();
        if has_agent {
            patches.push(json!({"patch": FREQUENT_PROBES}));
        }
        if overlay == "kube-proxy-replacement" {
            patches.push(json!({"patch": alone(self.plane.server()).to_string()}));
        }
        compose(&folder, overlay, &all, &patches.into())?;
        let folder = folder.display().to_string();
        self.kubectl(&[&APPLY[..], &["--server-side", "--force-conflicts", "-k", &folder]].concat())
            .map(drop)
    }

    /// The components of deploy/ that nodes of this machine need.
    fn surroundings(&self) -> Result<Option<&'static str>> {
        let root = crate::cgroup::root()?;
        Ok((root.ends_with("unified")).then_some("cgroup-unified"))
    }

    /// Has the DaemonSet run the image with this tag: [`VERSION`] or [`LAST_RELEASE`]. Waits until
    /// every node's agent is replaced and ready.
    pub fn set_image(&self, tag: &str) -> Result<()> {
        let (daemonset, image) =
            (format!("daemonset/{NAME}"), format!("agent={}:{tag}", containerd::REGISTRY));
        self.kubectl(&["-n", NAME, "set", "image", &daemonset, &image])?;
        self.wait_for_agents()
    }

    /// Waits until the DaemonSet runs, updated and ready, on every node.
    pub fn wait_for_agents(&self) -> Result<()> {
        let limit = format!("--timeout={}s", crate::wait::patient(PATIENCE).as_secs());
        self.kubectl(&["-n", NAME, "rollout", "status", "daemonset", NAME, &limit])
            .with_context(|| self.describe_agents())
            .map(drop)
    }

    fn describe_agents(&self) -> String {
        let logs = ["-n", NAME, "describe", "pods"];
        self.kubectl(&logs).unwrap_or_else(|error| format!("{error:#}"))
    }

    /// Waits until the kubelet of every node is ready.
    pub fn wait_for_nodes(&self) -> Result<()> {
        until("readiness of all nodes", PATIENCE, || {
            let nodes = self.plane.list("Node")?;
            let waiting: Vec<_> = self
                .workers
                .iter()
                .map(Worker::name)
                .filter(|name| !is_ready(&nodes, name))
                .collect();
            Ok(if waiting.is_empty() { Ok(()) } else { Err(waiting.join(", ")) })
        })
        .with_context(|| self.logs("kubelet"))?;
        Ok(())
    }

    /// The ends of the nodes' logs of a program.
    fn logs(&self, program: &str) -> String {
        self.workers.iter().map(|worker| worker.end_of_log(program)).collect()
    }
}

/// Whether a node of this list is ready.
fn is_ready(nodes: &[kube::api::DynamicObject], name: &str) -> bool {
    let node = nodes.iter().find(|node| node.metadata.name.as_deref() == Some(name));
    let conditions = node.and_then(|node| node.data["status"]["conditions"].as_array());
    let wanted = |it: &serde_json::Value| it["type"] == "Ready" && it["status"] == "True";
    conditions.is_some_and(|conditions| conditions.iter().any(wanted))
}

fn start_workers<'a>(
    cluster: &'a Cluster,
    plane: &ControlPlane<'a>,
    parts: &Parts,
    proxy: Proxy,
) -> Result<Vec<Worker<'a>>> {
    let dns = &dns::address(proxy);
    let places = POOLS.into_iter().cycle().zip(REGIONS.into_iter().cycle());
    // Starting a node takes seconds, mostly of waiting.
    let workers: Vec<_> = std::thread::scope(|scope| {
        let start =
            |(node, (pool, region)): (&'a crate::node::Node, (&'static str, &'static str))| {
                let labels = json!({ZONE: zone(&node.name), REGION: region, POOL: pool});
                scope.spawn(move || Worker::start(cluster, plane, parts, node, &labels, dns, proxy))
            };
        let threads: Vec<_> = cluster.nodes().iter().zip(places).map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Result<_>>()
    })?;
    ensure!(!workers.is_empty(), "a cluster has a node");
    Ok(workers)
}

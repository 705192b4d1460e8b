//! `cargo xtask cluster`: a real cluster on this machine.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;
use clap::{Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::build_ebpf;
use crate::cluster_parts::Parts;
use crate::cluster_tools;
use crate::image;
use crate::needs::Need;
use crate::process::become_command;
use crate::prometheus;
use crate::suites;
use crate::workspace::{Profile, Workspace};

/// The variable for the archive with topo-lb's own image.
pub(crate) const IMAGE: &str = "TOPO_LB_IMAGE";

/// The lab's program.
const PROGRAM: &str = "cluster";

/// A real cluster on this machine: control plane, containerd and kubelets, with topo-lb on it.
///
/// The cluster stays when the command ends. Its nodes are node-a in zone a and pool hangzhou, node-b in
/// zone b and pool shanghai, and so on; two nodes are in each of the regions north and south. TOPO_LB_KUBERNETES and TOPO_LB_CONTAINERD name folders with
/// other versions of these programs.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask cluster up
  cargo xtask cluster up --proxy topo-lb      # no kube-proxy
  cargo xtask cluster up --nodes 4 --prometheus   # for plan --advise and plan --since
  export KUBECONFIG=$(cargo xtask cluster up --nodes 3)
  kubectl apply -f deploy/examples/openyurt.yaml
  kubectl exec deploy/united-deployment2-hangzhou -- curl -s svc-ud1/hostname
  cargo xtask cluster down")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start a cluster; the last line is the path of its kubeconfig
    Up {
        /// The number of nodes
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=9))]
        nodes: u8,
        /// What handles Services
        #[arg(long, value_enum, default_value_t)]
        proxy: ServiceProxy,
        /// Also run Prometheus, which scrapes the agents every second: its address is printed before the
        /// kubeconfig. Agents that you install later need the chart's `listen.onNode=true`
        #[arg(long)]
        prometheus: bool,
    },
    /// Show what runs; exit code 1 if no cluster is up
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the cluster and all that it has left
    Down,
}

/// What handles the Services of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ServiceProxy {
    /// topo-lb in place of kube-proxy
    TopoLb,
    /// topo-lb for all Services, beside kube-proxy
    #[default]
    #[value(name = "topo-lb+kube-proxy")]
    #[serde(rename = "topo-lb+kube-proxy")]
    Beside,
    /// Only kube-proxy; the nodes have topo-lb's image, registry.example.com/topo-lb
    KubeProxy,
    /// Nothing
    None,
}

impl ServiceProxy {
    /// Its name on the command line and in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::TopoLb => "topo-lb",
            Self::Beside => "topo-lb+kube-proxy",
            Self::KubeProxy => "kube-proxy",
            Self::None => "none",
        }
    }

    /// Whether the nodes have topo-lb's image.
    fn has_image(self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Returns only on failure: otherwise this process becomes the lab's program, with its exit code.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let mut command = match args.action {
        Action::Up { nodes, proxy, prometheus } => up(workspace, nodes, proxy, prometheus)?,
        Action::Status { json } => {
            let mut status = compiled(workspace)?;
            status.arg("status").args(json.then_some("--json"));
            status.envs(cluster_tools::programs(workspace)?);
            status
        }
        Action::Down => {
            let mut down = compiled(workspace)?;
            down.arg("down");
            down
        }
    };
    become_command(&mut command)
}

fn up(
    workspace: &Workspace,
    nodes: u8,
    proxy: ServiceProxy,
    has_prometheus: bool,
) -> Result<Command> {
    let mut needs = vec![Need::Kernel, Need::Lab, Need::Root, Need::Cluster, Need::ClusterTools];
    needs.push(Need::Iptables);
    needs.extend(has_prometheus.then_some(Need::Prometheus));
    build_ebpf::ready(workspace, &needs)?;
    let parts = Parts::get(workspace)?;
    let image = proxy
        .has_image()
        .then(|| image::for_cluster(workspace, &suites::agent(workspace)?))
        .transpose()?;
    let mut command = workspace.command(program(workspace)?);
    parts.name_in(&mut command);
    command.args(["up", "--nodes", &nodes.to_string(), "--proxy", proxy.name()]);
    if let Some(image) = image {
        command.env(IMAGE, image);
    }
    if has_prometheus {
        command.arg("--prometheus").env(prometheus::VARIABLE, prometheus::programs(workspace)?);
    }
    Ok(command)
}

/// The lab's program as `up` compiled it: a cluster can be removed while the source does not compile.
fn compiled(workspace: &Workspace) -> Result<Command> {
    let path = workspace.program(Profile::Dev, PROGRAM);
    let path = if path.is_file() { path } else { program(workspace)? };
    Ok(workspace.command(path))
}

fn program(workspace: &Workspace) -> Result<PathBuf> {
    suites::program(workspace, "lab's cluster", PROGRAM)
}

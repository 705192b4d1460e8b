//! `cargo xtask demo`: a cluster on this machine, with real traffic.

use anyhow::Result;

use crate::build_ebpf;
use crate::control_plane;
use crate::lab_program;
use crate::needs::Need;
use crate::process::become_command;
use crate::workspace::{Profile, Workspace};

/// Shows real connections staying in their zone: three nodes, their agents and their pods, as
/// namespaces and cgroups of this machine.
///
/// Needs no cluster, and leaves nothing behind, even after Ctrl-C. Exit code 1: a check failed.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask demo
  cargo xtask demo --api-server    the same through etcd, kube-apiserver and its controllers
  cargo xtask demo --json | jq '.checks[] | select(.ok | not)'")]
pub(crate) struct Args {
    /// Feed the agents by a real API server, with EndpointSlices made by the real controllers: those
    /// of KUBEBUILDER_ASSETS, or else Kubernetes 1.20, which is compiled once
    #[arg(long)]
    api_server: bool,
    /// Print the checks as JSON, and nothing else, on standard output
    #[arg(long)]
    json: bool,
}

/// Returns only on failure: otherwise this process becomes the demo, with its exit code.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let mut needs = vec![Need::Kernel, Need::Lab, Need::Root];
    needs.extend(args.api_server.then_some(Need::ControlPlane));
    build_ebpf::ready(workspace, &needs)?;
    let programs = args.api_server.then(|| control_plane::programs(workspace)).transpose()?;
    // The demo measures no speed, and this profile compiles in less than half the time.
    let mut demo = lab_program::build(workspace, Profile::Dev, "demo", &["pod"])?;
    if let Some(programs) = programs {
        demo.arg("--api-server").env(control_plane::VARIABLE, programs);
    }
    if args.json {
        demo.arg("--json");
    }
    become_command(&mut demo)
}

//! `cargo xtask run-agent`: builds and starts the agent.

use std::ffi::OsString;
use std::process::Command;

use anyhow::Result;

use crate::build_ebpf;
use crate::mounts::{CGROUPS, Cgroup2};
use crate::needs::Need;
use crate::process::{become_command, run_logged};
use crate::workspace::{Profile, Workspace, restore_environment};

/// Builds the agent as users run it, and starts `topo-lb agent ARGS`.
///
/// On a host that has cgroups of both versions, the agent is told where those of version 2 are,
/// unless `TOPO_LB_CGROUP_ROOT` or an argument says so.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask run-agent -- --manifests tests/fixtures/kubernetes-1.36.json --node-name kind-worker2
  cargo xtask run-agent -- --kubeconfig ~/.kube/config --node-name \"$(hostname)\"
  cargo xtask run-agent --log -- --manifests cluster.yaml --node-name worker-1
  cargo xtask run-agent -- --help")]
pub(crate) struct Args {
    /// With programs that say what they decide: new connections, and with RUST_LOG=debug every packet of tc
    #[arg(long)]
    log: bool,
    /// The agent's own arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// Returns only on failure.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let machine = build_ebpf::ready(workspace, &[Need::Kernel])?;
    let mut build = workspace.cargo("build");
    build.args(["--release", "--package", "topo-lb"]);
    if args.log {
        build_ebpf::with_log(workspace, &machine)?;
        build.args(["--features", "log"]).env("TOPO_LB_EBPF_OBJECT", workspace.log_object());
    }
    run_logged("agent", &mut build, &workspace.log("build-agent"))?;

    // In the caller's folder: arguments may be relative paths.
    let mut agent = Command::new(workspace.program(Profile::Release, "topo-lb"));
    restore_environment(&mut agent, &workspace.target);
    agent.arg("agent").args(&args.args);
    match machine.mounts.cgroup2 {
        Cgroup2::At(place)
            if place.as_os_str() != CGROUPS
                && std::env::var_os("TOPO_LB_CGROUP_ROOT").is_none() =>
        {
            agent.env("TOPO_LB_CGROUP_ROOT", place);
        }
        _ => {}
    }
    become_command(&mut agent)
}

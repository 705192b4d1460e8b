//! `cargo xtask setup`: installs everything that the other commands need.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};

use crate::build_ebpf;
use crate::cluster_parts::Parts;
use crate::control_plane;
use crate::fuzz;
use crate::install;
use crate::machine::Machine;
use crate::mounts::{BPFFS, CGROUPS, Cgroup2};
use crate::needs::Need;
use crate::plan;
use crate::progress;
use crate::stage;
use crate::virtual_machine;
use crate::workspace::Workspace;

/// Installs and mounts what the other commands need. Does nothing if everything is there.
///
/// On Debian 12, as root: the compiler and LLVM from Debian, bpf-linker from crates.io, bpffs and
/// cgroup2. On other systems, and for other users, it uses what is there, and prints what is missing
/// with the command that installs it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask setup --dry-run     print the steps without doing them
  cargo xtask setup               for builds, the agent and the demo
  cargo xtask setup --for-tests   also what only `cargo xtask test` needs
  cargo xtask setup --control-plane   also compile the control plane of the tests
  cargo xtask setup --cluster     also get the parts of a cluster: Kubernetes, containerd, images
  cargo xtask setup --for-release     also get what `cargo xtask release --check` takes")]
pub(crate) struct Args {
    /// Print the steps without doing them
    #[arg(long)]
    dry_run: bool,
    /// Also what only `cargo xtask test` needs: rustfmt, Clippy, cargo-deny, dpkg-dev, pip, xz,
    /// a compiler for arm64
    #[arg(long)]
    for_tests: bool,
    /// Also compile the control plane of the tests, unless it is compiled already
    #[arg(long)]
    control_plane: bool,
    /// Also get the parts of a cluster, unless they are there already
    #[arg(long)]
    cluster: bool,
    /// Also get all that `cargo xtask release --check` needs, which works without a network
    #[arg(long)]
    for_release: bool,
    /// Also compile the object whose programs say what they decide
    #[arg(long, hide = true)]
    log_object: bool,
    /// Also compile the target of the fuzzing stage; needs the eBPF object
    #[arg(long, hide = true)]
    fuzz_target: bool,
    /// Also cross-compile the suites that the stage of kernels runs on arm64; needs the eBPF object
    #[arg(long, hide = true)]
    arm64_suites: bool,
}

/// Needs of builds, the agent and the demo.
const TO_RUN: &[Need] = &[Need::Object, Need::Kernel, Need::Lab];

/// Further needs of the tests.
const TO_TEST: &[Need] = &[
    Need::ObjectLints,
    Need::HostLints,
    Need::Deny,
    Need::Peers,
    Need::Neighbours,
    Need::ControlPlane,
    Need::ClusterTools,
    Need::Prometheus,
    Need::VirtualMachine,
    Need::Arm64,
    Need::Arm64Compiler,
];

pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    let mut needs: BTreeSet<Need> = TO_RUN.iter().copied().collect();
    if args.for_tests {
        needs.extend(TO_TEST);
    }
    if args.control_plane {
        needs.insert(Need::ControlPlane);
    }
    if args.cluster {
        needs.extend([Need::Cluster, Need::ClusterTools, Need::Iptables]);
    }
    if args.for_release {
        needs.extend(stage::release_needs());
    }
    if args.arm64_suites {
        needs.insert(Need::Arm64Compiler);
    }
    if args.dry_run {
        return explain(workspace, &needs);
    }
    let machine = install::ready(workspace, &needs)?;
    report(&machine);
    if args.log_object {
        build_ebpf::with_log(workspace, &machine)?;
    }
    if args.control_plane {
        control_plane::programs(workspace)?;
    }
    if args.cluster {
        Parts::get(workspace)?;
    }
    if args.for_release {
        stage::get_for_release(workspace)?;
    }
    if args.fuzz_target {
        fuzz::compile(workspace)?;
    }
    if args.arm64_suites {
        let (compiler, _) = plan::object_tools(&machine).context("no compiler for arm64")?;
        virtual_machine::compile_for_arm64(workspace, compiler)?;
    }
    Ok(())
}

fn explain(workspace: &Workspace, needs: &BTreeSet<Need>) -> Result<()> {
    let machine = Machine::inspect(workspace, needs);
    let plan = plan::plan(&machine, needs);
    for step in &plan.steps {
        progress::note(&step.title);
        progress::note(&format!("    {}", step.display()));
    }
    install::refuse_missing(&plan)?;
    if plan.steps.is_empty() {
        progress::note("nothing to do");
        report(&machine);
    }
    Ok(())
}

/// Prints what the other commands will use.
fn report(machine: &Machine) {
    if let Some((compiler, linker)) = plan::object_tools(machine) {
        let compiler = compiler.display();
        progress::note(&format!("eBPF: {compiler}, bpf-linker {}", linker.version));
    }
    progress::note(&format!("pins: bpffs on {BPFFS}"));
    if let Cgroup2::At(place) = &machine.mounts.cgroup2 {
        let hybrid = if place.as_os_str() == CGROUPS { "" } else { " (beside version 1)" };
        progress::note(&format!("hooks: cgroup2 on {}{hybrid}", place.display()));
    }
}

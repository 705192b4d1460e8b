//! `cargo xtask bench`: the numbers, side by side.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::build_ebpf;
use crate::lab_program;
use crate::plan::Need;
use crate::process::become_command;
use crate::progress::Screen;
use crate::setup;
use crate::workspace::{Profile, Workspace};

/// Measures topo-lb on this machine, beside direct connections and the rules that kube-proxy writes
/// for nftables.
///
/// All of it takes some ten minutes, on a machine that has nothing else to do. Leaves nothing
/// behind, even after Ctrl-C. A target that is missed is said, and is no failure.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench --quick                      # under three minutes: does it work here?
  cargo xtask bench --part connect --part kernel
  cargo xtask bench --json | jq '.results[] | select(.met == false)'
  cargo xtask bench --write-docs                 # writes docs/performance.md")]
pub(crate) struct Args {
    /// Only these parts: connect, kernel, control-plane, rollout
    #[arg(long, value_name = "PART")]
    part: Vec<String>,
    /// Few sizes and few rounds
    #[arg(long)]
    quick: bool,
    /// Print the results as JSON, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// Write docs/performance.md and its pictures
    #[arg(long)]
    write_docs: bool,
}

/// Runs the command. It returns only upon failure: otherwise this process becomes the bench, which
/// gets its signals and gives its exit code.
///
/// # Errors
/// Something is missing that only a person can install, or a build fails.
pub(crate) fn run(workspace: &Workspace, screen: &Screen, args: &Args) -> Result<()> {
    let needs = [Need::Object, Need::Kernel, Need::Lab, Need::Peers, Need::Root];
    let needs = BTreeSet::from(needs);
    let machine = setup::ready(workspace, screen, &needs)?;
    build_ebpf::build(workspace, screen, &machine)?;
    // The agent as an image holds it.
    let mut bench = lab_program::build(workspace, screen, Profile::Deployed, "bench", &[])?;
    // The largest clusters take an agent longer than a lab waits for one otherwise.
    bench.env("TOPO_LB_PATIENCE", "6");
    for part in &args.part {
        bench.args(["--part", part]);
    }
    if args.quick {
        bench.arg("--quick");
    }
    if args.json {
        bench.arg("--json");
    }
    if args.write_docs {
        bench.arg("--write-docs").arg(workspace.root.join("docs"));
    }
    become_command(&mut bench)
}

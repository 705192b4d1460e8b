//! `cargo xtask bench`: measures topo-lb and its alternatives.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::architecture::Architecture;
use crate::build_ebpf;
use crate::control_plane;
use crate::kube_proxy;
use crate::lab_program;
use crate::needs::Need;
use crate::process::become_command;
use crate::shipped;
use crate::workspace::Workspace;

/// Measures topo-lb on this machine, compared with direct connections, kube-proxy 1.20, and the rules
/// that a later kube-proxy writes for nftables.
///
/// A whole run takes about half an hour, on a machine that does nothing else. Leaves nothing behind,
/// even after Ctrl-C. A missed target is reported, but is no failure.
///
/// To compare two versions, measure each in a checkout of its own, in turns: the agent contains its
/// programs, and needs maps of their layout.
///
/// kube-proxy is compiled from Debian's source the first time, which takes minutes, or
/// TOPO_LB_KUBE_PROXY names one. `--quick` leaves it out unless it is there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask bench --quick                      # under three minutes: does it work here?
  cargo xtask bench --part connect --part kernel
  cargo xtask bench --part kernel --json | jq -r '.results[] | select(.target) | [.name, .median] | @tsv'
                                                 # ratios of the programs to an empty one
  cargo xtask bench --json | jq '.results[] | select(.met == false)'
  cargo xtask bench --write-docs                 # writes docs/performance/report.json, and from it
                                                 # docs/performance.md and its pictures
  cargo xtask bench --write-docs --from docs/performance/report.json
                                                 # writes these again, and measures nothing")]
pub(crate) struct Args {
    /// Only these parts: connect, external, direct-return, accounting, dns, kernel, probes, control-plane,
    /// first-contact, view, rollout, advice
    #[arg(long, value_name = "PART")]
    part: Vec<String>,
    /// Few sizes and few rounds
    #[arg(long)]
    quick: bool,
    /// Print the results as JSON, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// Write docs/performance.md, its pictures, and the report that they are made from: one whole run's.
    /// With --part also --from: the report with the other parts
    #[arg(long)]
    write_docs: bool,
    /// Take the results of an earlier run, as --json has printed or --write-docs has kept them, except
    /// those of --part. Without --part measure nothing
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    from: Option<PathBuf>,
}

/// Returns only on failure: otherwise this process becomes the bench, with its exit code.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    ensure!(
        !args.write_docs || args.part.is_empty() || args.from.is_some(),
        "docs/performance.md tells all parts: leave out --part, or give --from the report with the others"
    );
    let measures = args.from.is_none() || !args.part.is_empty();
    let measures_one = |of: &[&str]| {
        measures && (args.part.is_empty() || args.part.iter().any(|part| of.contains(&&**part)))
    };
    let with_kube_proxy =
        measures_one(&["connect", "external"]) && (!args.quick || kube_proxy::found().is_some());
    let mut needs = Vec::new();
    if measures {
        needs.extend([Need::Kernel, Need::Lab, Need::Peers, Need::Root]);
    }
    if measures_one(&["view"]) {
        needs.push(Need::Browser);
    }
    if with_kube_proxy {
        needs.extend([Need::KubeProxy, Need::Iptables]);
    }
    // The programs compiled here contain the object.
    build_ebpf::ready(workspace, &needs)?;
    let kube_proxy = with_kube_proxy.then(|| kube_proxy::program(workspace)).transpose()?;
    let mut bench = lab_program::alone(workspace, "bench")?;
    if measures {
        // The agent as in a release.
        let here = Architecture::ALL.into_iter().find(|it| it.is_here());
        let shipped = shipped::build(workspace, here.as_slice())?;
        bench.envs(shipped.first().map(|(_, agent)| ("TOPO_LB_AGENT", agent)));
    }
    if let Some(report) = &args.from {
        bench.arg("--from").arg(report);
    }
    // With the largest clusters the agent exceeds the usual limits.
    bench.env("TOPO_LB_PATIENCE", "6").env("TOPO_LB_EBPF_OBJECT", workspace.object());
    if let Some(kube_proxy) = kube_proxy {
        bench.env(kube_proxy::VARIABLE, kube_proxy);
    }
    // Only `cargo xtask test` compiles it. Without it, the bench leaves this part out.
    if measures && control_plane::is_there() {
        bench.env(control_plane::VARIABLE, control_plane::programs(workspace)?);
    }
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

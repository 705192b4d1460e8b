//! `cargo xtask neighbours`: the suite `neighbours`, also with what takes too long for `cargo xtask test`.

use anyhow::Result;

use crate::build_ebpf;
use crate::lanes;
use crate::needs::Need;
use crate::neighbours;
use crate::progress;
use crate::stage;
use crate::suites;
use crate::workspace::Workspace;

/// Runs the suite `neighbours` whole: real CNI plugins, VPNs, firewalls, ingresses, caches and switches beside topo-lb.
///
/// `cargo xtask test` runs it without the part that takes as long as the rest: here the agent also starts again beside each
/// neighbour, under load. Leaves nothing behind.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask neighbours     three minutes")]
pub(crate) struct Args {}

/// The variable that makes the suite whole.
const WHOLE: &str = "TOPO_LB_WHOLE";

/// The needs of the suite.
const NEEDS: [Need; 6] =
    [Need::Kernel, Need::Lab, Need::Peers, Need::Neighbours, Need::Iptables, Need::Root];

pub(crate) fn run(workspace: &Workspace, Args {}: &Args) -> Result<()> {
    build_ebpf::ready(workspace, &NEEDS)?;
    let agent = suites::agent(workspace)?;
    let files = neighbours::files(workspace)?;
    let binaries = suites::compile(workspace, "compiling the lab", &["lab"])?;
    let suite = vec!["neighbours".to_owned()];
    let suites = stage::of_the_lab(workspace, &binaries["lab"], suite, &agent, |command| {
        command.env(neighbours::VARIABLE, &files).env(WHOLE, "1");
    });
    if let Some(what) = lanes::run(suites, 1)? {
        progress::warn(&what);
    }
    Ok(())
}

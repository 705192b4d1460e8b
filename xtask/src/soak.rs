//! `cargo xtask soak`: connections under constant change, for any duration.

use anyhow::Result;

use crate::build_ebpf;
use crate::lab_program;
use crate::needs::Need;
use crate::process::become_command;
use crate::workspace::{Profile, Workspace};

/// Reads a thousand million records while they are replaced, connects while Services change as fast as
/// they can, and while the agent is killed and started again: the long version of three suites of
/// `cargo xtask test`.
///
/// Leaves nothing behind, even after Ctrl-C. Exit code 1: a connection or a read went wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask soak                         # ten minutes
  cargo xtask soak --minutes 600 --json    # a night; {\"connections\":n,...,\"wrong_reads\":0}")]
pub(crate) struct Args {
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: u64,
    /// Print the sums as JSON, and nothing else, on standard output
    #[arg(long)]
    json: bool,
}

/// Returns only on failure: otherwise this process becomes the soak, with its exit code.
pub(crate) fn run(workspace: &Workspace, args: &Args) -> Result<()> {
    build_ebpf::ready(workspace, &[Need::Kernel, Need::Lab, Need::Peers, Need::Root])?;
    let mut soak = lab_program::build(workspace, Profile::Release, "soak", &["pod", "stress"])?;
    soak.args(["--minutes", &args.minutes.to_string()]);
    if args.json {
        soak.arg("--json");
    }
    become_command(&mut soak)
}

//! `cargo xtask demo`: the OpenYurt tutorial on one machine, and cases beyond it.

mod bytes;
mod check;
mod download;
mod files;
mod server;
mod stage;
mod story;
mod table;
mod world;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use topo_lb_tests::binary::Binary;
use topo_lb_tests::interrupt::exit_code;

use crate::stage::Stage;
use topo_lb_tests::progress::Progress;

/// Three nodes, an agent on each, real servers and real connections, on this machine alone.
///
/// Needs root. Leaves nothing behind, even after Ctrl-C. Exit code 1: a check failed.
#[derive(Debug, Parser)]
#[command(name = "demo")]
struct Arguments {
    /// The agent binary
    #[arg(long, value_name = "PATH", env = "TOPO_LB_AGENT")]
    agent: PathBuf,
    /// Use a real API server: `KUBEBUILDER_ASSETS` names the folder with etcd, kube-apiserver and
    /// kube-controller-manager
    #[arg(long)]
    api_server: bool,
    /// Print only the checks, as JSON, on standard output
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    exit_code(run(&Arguments::parse()))
}

/// Whether every check was ok.
fn run(arguments: &Arguments) -> Result<bool> {
    let begun = Instant::now();
    let progress = Progress::new();
    let path = &arguments.agent;
    let agent =
        path.canonicalize().with_context(|| format!("no agent binary at {}", path.display()))?;
    let (binary, tables) = (Binary::new(agent), !arguments.json);
    let report = Stage::set(&binary, arguments.api_server, progress, tables, story::tell)?;
    let text = if arguments.json {
        serde_json::to_string(&report).context("a report is always JSON")?
    } else {
        table::summary(&report, begun.elapsed())
    };
    writeln!(anstream::stdout(), "{text}").context("cannot print the result")?;
    Ok(report.is_ok())
}

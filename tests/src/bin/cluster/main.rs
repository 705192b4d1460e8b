//! `cargo xtask cluster`: a real cluster on this machine, which stays when the command ends.
//!
//! `up` starts a process that makes the cluster and keeps it; `down` has this process remove it.

mod down;
mod keep;
mod status;
mod up;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use topo_lb_tests::interrupt::exit_code;
use topo_lb_tests::kubernetes::Proxy;

#[derive(Debug, Parser)]
#[command(name = "cluster")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster, and print the path of its kubeconfig
    Up(Shape),
    /// Show what runs
    Status {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove the cluster
    Down,
    /// Make the cluster and keep it, as a child of `up`
    #[command(hide = true)]
    Keep(Shape),
}

/// What a cluster is made of.
#[derive(Clone, Debug, Args)]
struct Shape {
    /// The number of nodes
    #[arg(long, default_value_t = 2)]
    nodes: u8,
    /// What handles Services
    #[arg(long, value_enum, default_value_t = Proxy::Beside)]
    proxy: Proxy,
    /// Also run Prometheus, which scrapes the agents
    #[arg(long)]
    prometheus: bool,
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Up(shape) => up::run(&shape),
        Command::Status { json } => exit_code(status::run(json)),
        Command::Down => exit_code(down::run().map(|()| true)),
        Command::Keep(shape) => exit_code(keep::run(&shape).map(|()| true)),
    }
}

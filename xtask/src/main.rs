//! Set-up, builds, releases, tests, demo and bench: `cargo xtask --help`.
//!
//! Each subcommand is a module. [`machine`] inspects the machine by the table of [`needs`], [`plan`] decides
//! what is missing, and [`install`] carries out the plan. Messages go to standard error. Standard output is
//! for `--json` and for the programs that xtask starts.
//!
//! It must never import a crate of the product: it builds them, and has to run before they compile.
//!
//! The door: [`Command`], and the module of the command in question; [`stage`] has what `test` runs.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod alone;
mod architecture;
mod archive;
mod bench;
mod beside;
mod build_ebpf;
mod cache;
mod chart;
mod cluster;
mod cluster_parts;
mod cluster_tools;
mod control_plane;
mod dashboard;
mod debian;
mod debian_kubernetes;
mod demo;
mod docs;
mod e2e;
mod external_matrix;
mod fuzz;
mod given;
mod image;
mod install;
mod kube_proxy;
mod kubernetes;
mod lab_program;
mod lanes;
mod last_release;
#[cfg(test)]
mod layers;
mod libraries;
mod machine;
mod mounts;
mod needs;
mod neighbours;
mod neighbours_suite;
mod oci;
mod pictures;
mod plan;
mod process;
mod progress;
mod prometheus;
mod release;
mod release_check;
mod run_agent;
mod setup;
mod shipped;
mod soak;
mod stage;
mod static_program;
mod suites;
mod summary;
mod test;
mod toolchain;
mod virtual_machine;
mod workspace;

use workspace::Workspace;

/// Set-up, builds, releases, tests and the demo of topo-lb.
///
/// Every command does the set-up that it needs, so any of them can be the first on a new machine.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Setup(setup::Args),
    BuildEbpf(build_ebpf::Args),
    RunAgent(run_agent::Args),
    Demo(demo::Args),
    Test(test::Args),
    Soak(soak::Args),
    Bench(bench::Args),
    Image(image::Args),
    Release(release::Args),
    Cluster(cluster::Args),
    E2e(e2e::Args),
    ExternalMatrix(external_matrix::Args),
    Neighbours(neighbours_suite::Args),
    Dashboard(dashboard::Args),
    Chart(chart::Args),
    Pictures(pictures::Args),
    Docs(docs::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let workspace = process::catch_signals().and_then(|()| Workspace::find());
    let result = workspace.and_then(|workspace| match cli.command {
        Command::Setup(args) => setup::run(&workspace, &args),
        Command::BuildEbpf(args) => build_ebpf::run(&workspace, &args),
        Command::RunAgent(args) => run_agent::run(&workspace, &args),
        Command::Demo(args) => demo::run(&workspace, &args),
        Command::Test(args) => test::run(&workspace, &args),
        Command::Soak(args) => soak::run(&workspace, &args),
        Command::Bench(args) => bench::run(&workspace, &args),
        Command::Image(args) => image::run(&workspace, &args),
        Command::Release(args) if args.check => release_check::run(&workspace, args.json),
        Command::Release(args) => release::run(&workspace, &args),
        Command::Cluster(args) => cluster::run(&workspace, &args),
        Command::E2e(args) => e2e::run(&workspace, &args),
        Command::ExternalMatrix(args) => external_matrix::run(&workspace, &args),
        Command::Neighbours(args) => neighbours_suite::run(&workspace, &args),
        Command::Dashboard(args) => dashboard::run(&workspace, &args),
        Command::Chart(args) => chart::run(&workspace, &args),
        Command::Pictures(args) => pictures::run(&workspace, &args),
        Command::Docs(args) => docs::run(&workspace, &args),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Like a shell, for a command that a signal has ended.
        Err(_) if process::caught() != 0 => {
            progress::error("interrupted");
            ExitCode::from(128 + process::caught())
        }
        Err(error) => {
            progress::error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_help_of_every_subcommand_has_an_example() {
        for command in Cli::command().get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Examples:\n  cargo xtask"), "{}: {help}", command.get_name());
        }
    }
}

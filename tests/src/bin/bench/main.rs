//! `cargo xtask bench`: measures topo-lb and its alternatives.

mod api;
mod connect;
mod control_plane;
mod curve;
mod document;
mod exchange;
mod first_contact;
mod ground;
mod iptables;
mod kernel;
mod kube_proxy;
mod machine;
mod nftables;
mod probes;
mod program;
mod result;
mod rollout;
mod sample;
mod test_run;

use std::fs;
use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand, ValueEnum};
use topo_lb_tests::interrupt;

use ground::{Effort, Ground};
use machine::Machine;
use result::{Figure, Report, table};

/// Measures topo-lb on this machine, beside what one would use instead.
///
/// Needs root, the agent binary in TOPO_LB_AGENT, and for that peer kube-proxy 1.20 in
/// TOPO_LB_KUBE_PROXY. Leaves nothing behind, even after Ctrl-C. A target that is missed is said, and
/// is no failure.
#[derive(Debug, Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Only these parts; without any, all
    #[arg(long, value_enum, value_name = "PART")]
    part: Vec<Part>,
    /// Few sizes and few rounds: it shows that it works, and is soon over
    #[arg(long)]
    quick: bool,
    /// Print the results as JSON, and nothing else, on standard output
    #[arg(long)]
    json: bool,
    /// Write performance.md, its pictures, and the report that they are made from into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "part")]
    write_docs: Option<PathBuf>,
    /// Measure nothing: the results are those of this report
    #[arg(long, value_name = "FILE", conflicts_with_all = ["part", "quick"])]
    from: Option<PathBuf>,
    /// One end of what is timed
    #[command(subcommand)]
    end: Option<End>,
}

/// The roles of this program inside a pod.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum End {
    /// Serves
    #[command(hide = true)]
    Serve,
    /// Dials
    #[command(hide = true)]
    Dial,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Exchanges through a ClusterIP and direct, beside other proxies
    Connect,
    /// Run time of each program, by the kernel
    Kernel,
    /// Answers to probes and scrapes beside a crowd of connections that ask nothing
    Probes,
    /// From the API server to the maps
    ControlPlane,
    /// From the agent's start to the first right connection, at a real API server
    FirstContact,
    /// A rolling update on 5,000 nodes
    Rollout,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.end {
        Some(End::Serve) => exchange::serve(),
        Some(End::Dial) => exchange::dial(),
        None => run(&arguments),
    };
    // After Ctrl-C the sweep ends this process; failures due to that do not count.
    let _not_interrupted = interrupt::permit();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let report = match &arguments.from {
        Some(file) => {
            let read = fs::read_to_string(file).map_err(Into::into);
            let report = read.and_then(|text| Report::read(&text));
            report.with_context(|| format!("cannot read {}", file.display()))?
        }
        None => measure(Effort { quick: arguments.quick }, &arguments.part)?,
    };
    if let Some(folder) = &arguments.write_docs {
        document::write(&report, folder)?;
    }
    let text = if arguments.json {
        report.json()?
    } else {
        let missed = report.results.iter().filter(|figure| figure.met == Some(false)).count();
        let closing = match missed {
            0 => "Every target that was measured is met.".to_owned(),
            count => format!("{count} targets are missed."),
        };
        format!("{}\n\n{}\n\n{closing}\n", report.machine.sentence(), table(&report.results))
    };
    write!(stdout(), "{text}").context("nobody reads the result")
}

/// Measures these parts; if empty, all.
fn measure(effort: Effort, parts: &[Part]) -> Result<Report> {
    let machine = Machine::describe(effort.of("quick", "full"));
    let begun = Instant::now();
    let say = |what: &str| eprintln!("{:>6.0} s  {what}", begun.elapsed().as_secs_f64());
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    let mut results: Vec<Figure> = Vec::new();
    type Measure = fn(&Ground<'_>, Effort, &dyn Fn(&str)) -> Result<Vec<Figure>>;
    let parts: [(Part, Measure); 5] = [
        (Part::Connect, connect::measure),
        (Part::Kernel, kernel::measure),
        (Part::Probes, probes::measure),
        (Part::ControlPlane, control_plane::measure),
        (Part::FirstContact, first_contact::measure),
    ];
    let parts: Vec<_> = parts.into_iter().filter(|(part, _)| wanted(*part)).collect();
    if !parts.is_empty() {
        results = ground::within(|ground| {
            let found: Result<Vec<_>> =
                parts.iter().map(|(_, measure)| measure(ground, effort, &say)).collect();
            Ok(found?.concat())
        })?;
    }
    if wanted(Part::Rollout) {
        results.extend(rollout::measure(effort, &say)?);
    }
    say("done");
    Ok(Report { machine, results })
}

//! `cargo xtask bench`: measures topo-lb and its alternatives.

mod accounting;
mod advice;
mod api;
mod bad_days;
mod connect;
mod consistent;
mod control_plane;
mod curve;
mod direct_return;
mod dns;
mod document;
mod exchange;
mod external;
mod external_serial;
mod external_services;
mod first_contact;
mod fleet;
mod ground;
mod kernel;
mod kube_proxy;
mod machine;
mod nftables;
mod policies;
mod probes;
mod program;
mod queries;
mod result;
mod rollout;
mod rounds;
mod sample;
mod store;
mod test_run;
mod turnover;
mod uplink;
mod view;
mod xdp;
mod xdp_direct;

use std::fs;
use std::io::{Write as _, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand, ValueEnum};
use topo_lb_tests::interrupt::exit_code;

use ground::{Effort, Ground};
use machine::Machine;
use result::{Figure, Report, table};

/// Measures topo-lb and its alternatives on this machine.
///
/// Needs root, and the agent binary in TOPO_LB_AGENT. Measures kube-proxy 1.20 too if
/// TOPO_LB_KUBE_PROXY names it. Leaves nothing behind, even after Ctrl-C. Reports missed targets;
/// they do not change the exit code.
#[derive(Debug, Parser)]
#[command(name = "bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    /// Measure only these parts; by default all
    #[arg(long, value_enum, value_name = "PART")]
    part: Vec<Part>,
    /// Measure few sizes in few rounds, to show that the bench works
    #[arg(long)]
    quick: bool,
    /// Print only the results, as JSON, on standard output
    #[arg(long)]
    json: bool,
    /// Write performance.md, its pictures and its report into this folder
    #[arg(long, value_name = "FOLDER")]
    write_docs: Option<PathBuf>,
    /// Take the results from this report, except those of --part; without --part measure nothing
    #[arg(long, value_name = "FILE", conflicts_with = "quick")]
    from: Option<PathBuf>,
    /// A process in a pod of the lab
    #[command(subcommand)]
    end: Option<End>,
}

/// The roles of this program inside a pod.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
enum End {
    /// Answer timed requests
    #[command(hide = true)]
    Serve,
    /// Make timed requests on orders from standard input
    #[command(hide = true)]
    Dial,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Exchanges through a ClusterIP and direct, with topo-lb and with other proxies
    Connect,
    /// What accounting costs short TCP connections
    Accounting,
    /// Exchanges, connections in series and datagrams of clients outside of the nodes; frames as from a card, by XDP
    External,
    /// Clients outside with direct return, by tc and XDP; tables of a consistent choice
    DirectReturn,
    /// Queries to the agent's resolver, and by it to the cluster DNS
    Dns,
    /// Run time of each program, measured by the kernel; writes and memory of the maps of Services
    Kernel,
    /// Response times of probes and scrapes while many other clients are connected
    Probes,
    /// From the API server to the maps
    ControlPlane,
    /// From the agent's start to the first translated connection, with a real API server
    FirstContact,
    /// The page of `topo-lb view` in Chromium
    View,
    /// A rolling update on 5,000 nodes
    Rollout,
    /// `plan --advise` of a large cluster
    Advice,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = match arguments.end {
        Some(End::Serve) => exchange::serve(),
        Some(End::Dial) => exchange::dial(),
        None => run(&arguments),
    };
    exit_code(result.map(|()| true))
}

fn run(arguments: &Arguments) -> Result<()> {
    let measure = || measure(Effort { quick: arguments.quick }, &arguments.part);
    let report = match &arguments.from {
        Some(file) => {
            let read = fs::read_to_string(file).map_err(Into::into);
            let report = read.and_then(|text| Report::read(&text));
            let mut report = report.with_context(|| format!("cannot read {}", file.display()))?;
            if !arguments.part.is_empty() {
                report.replace(measure()?);
            }
            report
        }
        None => measure()?,
    };
    if let Some(folder) = &arguments.write_docs {
        document::write(&report, folder)?;
    }
    let text = if arguments.json {
        report.json()?
    } else {
        let missed = report.results.iter().filter(|figure| figure.met == Some(false)).count();
        let closing = match missed {
            0 => "All measured targets are met.".to_owned(),
            count => format!("{count} targets are missed."),
        };
        format!("{}\n\n{}\n\n{closing}\n", report.machine.sentence(), table(&report.results))
    };
    write!(stdout(), "{text}").context("cannot print the result")
}

/// Measures these parts; if empty, all.
fn measure(effort: Effort, parts: &[Part]) -> Result<Report> {
    let machine = Machine::describe(effort.of("quick", "full"));
    let begun = Instant::now();
    let say = |what: &str| eprintln!("{:>6.0} s  {what}", begun.elapsed().as_secs_f64());
    let wanted = |part| parts.is_empty() || parts.contains(&part);
    let mut results: Vec<Figure> = Vec::new();
    type Measure = fn(&Ground<'_>, Effort, &dyn Fn(&str)) -> Result<Vec<Figure>>;
    let parts: [(Part, Measure); 11] = [
        (Part::Connect, connect::measure),
        (Part::Accounting, accounting::measure),
        (Part::External, external::measure),
        (Part::DirectReturn, direct_return::measure),
        (Part::Dns, dns::measure),
        (Part::Kernel, kernel::measure),
        (Part::Probes, probes::measure),
        (Part::ControlPlane, control_plane::measure),
        (Part::FirstContact, first_contact::measure),
        (Part::View, view::measure),
        (Part::Advice, advice::measure),
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
        results.extend(fleet::measure(effort, &say)?);
    }
    say("done");
    Ok(Report { machine, later: Vec::new(), results })
}

//! `cargo xtask soak`: connections under constant change, for any duration.

use std::io::{Write as _, stdout};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use topo_lb_tests::direct_return::Returns;
use topo_lb_tests::half_open;
use topo_lb_tests::interrupt::exit_code;
use topo_lb_tests::node_deaths::{self, Deaths, Load};
use topo_lb_tests::reads::{self, Reuse, Until as UntilRead};
use topo_lb_tests::report::Report;
use topo_lb_tests::restarts::{self, Until};
use topo_lb_tests::router::Speaker;
use topo_lb_tests::{requirements, stress};

/// Floods a node port with half-open connections, which takes a minute or two. Reads records while they
/// are replaced. Then makes connections while Services change as fast as possible, while the agent is killed and restarted,
/// and, from outside, while a node with direct return dies every 20 seconds, in turns.
///
/// Needs root, and the agent binary in TOPO_LB_AGENT. Leaves nothing behind, even after Ctrl-C.
/// Exit code 1: a connection failed, or reached a wrong endpoint, or a read was wrong.
#[derive(Debug, Parser)]
#[command(name = "soak")]
struct Arguments {
    /// The duration in minutes, without that of the flood
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=100_000))]
    minutes: u64,
    /// Print only the sums, as JSON, on standard output
    #[arg(long)]
    json: bool,
}

/// Reads of records, unless they take three quarters of the time.
const READS: u64 = 1_000_000_000;
/// Half-open connections, from one source.
const HALF_OPEN: u64 = 10_000_000;
/// How long each turn lasts.
const TURN: Duration = Duration::from_secs(30);
/// The turn in which nodes die: each of three once.
const DEATHS: Deaths = Deaths { count: 3, every: Duration::from_secs(20) };
const LOAD: Load = Load { open: 10_000, per_second: 1_000 };

fn main() -> ExitCode {
    exit_code(run(&Arguments::parse()))
}

/// Returns whether every connection reached a permitted endpoint.
fn run(arguments: &Arguments) -> Result<bool> {
    requirements::agent()?;
    let flooded = half_open::run(HALF_OPEN)?;
    eprintln!("{flooded}");
    let begun = Instant::now();
    let whole = Duration::from_secs(arguments.minutes * 60);
    let read = read(whole / 4 * 3)?;
    let mut sums = Report::default();
    let (mut turns, mut deaths) = (0, 0);
    while begun.elapsed() < whole {
        let left = TURN.min(whole - begun.elapsed()).max(Duration::from_secs(1));
        // The turn is the seed: every turn has other changes, and every run has the same ones. Clients
        // outside take part in every second turn: the programs then test other values.
        sums.add(stress::run(left.as_secs(), turns, turns % 2 == 1)?);
        tell(begun, &mut sums);

        let left = TURN.min(whole.saturating_sub(begun.elapsed()));
        sums.add(restarts::run(Until::Elapsed(left))?);
        tell(begun, &mut sums);

        let outcome = node_deaths::run(LOAD, Returns::Directly, Speaker::Bird, DEATHS)?;
        ensure!(outcome.asked > 0 && outcome.answered > 0, "nobody was asked: {outcome:?}");
        deaths += outcome.deaths;
        eprintln!(
            "{} new connections while nodes die, the slowest in {:.1} s",
            outcome.answered,
            outcome.slowest.as_secs_f64()
        );
        sums.add(outcome.into());
        tell(begun, &mut sums);
        turns += 1;
    }
    let text = if arguments.json {
        let Report { connections, changes, restarts, wrong_endpoint, failed, .. } = sums;
        // The documented order.
        format!(
            "{{\"connections\":{connections},\"changes\":{changes},\"restarts\":{restarts},\
             \"deaths\":{deaths},\"wrong_endpoint\":{wrong_endpoint},\"failed\":{failed},\
             \"reads\":{},\"writes\":{},\"repeated\":{},\"wrong_reads\":{},\
             \"half_open\":{}}}",
            read.reads.reads,
            read.writes,
            read.reads.repeated,
            read.wrong(),
            flooded.syns
        )
    } else {
        format!(
            "{read}\n{flooded}\n{} connections, {} changes of Services, {} restarts, {deaths} deaths of \
             nodes: {}",
            sums.connections,
            sums.changes,
            sums.restarts,
            if sums.is_ok() { "none went wrong".to_owned() } else { wrong(&sums) }
        )
    };
    writeln!(stdout(), "{text}").context("cannot print the result")?;
    Ok(sums.is_ok() && read.wrong() == 0)
}

/// Reads records: first as they must not be written, then as the agent writes them.
///
/// # Errors
/// The first run finds no wrong read: then the second one would not either.
fn read(limit: Duration) -> Result<reads::Outcome> {
    let until = UntilRead { elapsed: limit, reads: READS, wrong: true };
    let control = reads::run(Reuse::AtOnce, until)?;
    eprintln!("records written in place: {control}");
    ensure!(control.reads.wrong > 0, "reads of records written in place are never wrong");
    let outcome = reads::run(Reuse::AfterGrace, UntilRead { wrong: false, ..until })?;
    eprintln!("records written as the agent does: {outcome}");
    Ok(outcome)
}

fn wrong(sums: &Report) -> String {
    format!("{} reached a wrong endpoint, {} failed", sums.wrong_endpoint, sums.failed)
}

/// Prints one line per turn, and the errors of the turn.
fn tell(begun: Instant, sums: &mut Report) {
    eprintln!(
        "{:>7.0} s  {:>12} connections  {:>9} changes  {:>6} restarts  {}",
        begun.elapsed().as_secs_f64(),
        sums.connections,
        sums.changes,
        sums.restarts,
        wrong(sums)
    );
    for one in sums.described.drain(..) {
        eprintln!("           {one}");
    }
}

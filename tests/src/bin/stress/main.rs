//! Connections on every CPU against a writer that changes Services as fast as it can.
//!
//! Runs in a pod of the lab: it uses addresses of its own network namespace, and serves the cgroup
//! that a flag names with its own programs and maps.

mod hammer;
mod history;
mod outside;
mod writer;

use std::array;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use topo_lb_core::plan::Capacity;
use topo_lb_kernel::datapath::attach::cleanup;
use topo_lb_kernel::datapath::maps::bpf::BpfStore;
use topo_lb_kernel::datapath::programs::object::{AllFrontends, MASQUERADE_MARK, TcpPeer};
use topo_lb_kernel::datapath::{Datapath, Options};
use topo_lb_tests::report::Report;

use crate::hammer::{accept, hammer};
use crate::history::History;
use crate::writer::Writer;

/// Connects to Services on every CPU while one thread changes them as fast as it can: every
/// connection must land on an endpoint that its Service had just then, or be refused when it had
/// none.
///
/// Prints JSON. Exit code 1: a connection went wrong.
#[derive(Debug, Parser)]
#[command(name = "stress")]
struct Arguments {
    /// Where maps and links are pinned; removed in the end
    #[arg(long, value_name = "PATH")]
    pin_dir: PathBuf,
    /// The cgroup that is served, which this process is in
    #[arg(long, value_name = "PATH")]
    cgroup_root: PathBuf,
    /// How long
    #[arg(long, value_name = "SECONDS")]
    seconds: u64,
    /// What the changes are drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Clients outside connect, too: by a device `uplink`, which is there
    #[arg(long)]
    outside: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let result = run(&arguments);
    let cleanup = cleanup::cleanup(&arguments.pin_dir).context("cannot clean up");
    match result.and_then(|report| cleanup.map(|_| report)) {
        Ok(report) => {
            println!("{}", serde_json::json!(report));
            ExitCode::from(u8::from(!report.is_ok()))
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<Report> {
    let mut datapath = Datapath::open(Options {
        pin_dir: arguments.pin_dir.clone(),
        cgroup_root: arguments.cgroup_root.clone(),
        capacity: Capacity {
            services: 512,
            slots: 1 << 17,
            members: 1 << 17,
            flows: 1024,
            // Without room for these, the maps of programs for clients outside are not pinned.
            connections: if arguments.outside { 1 << 14 } else { 0 },
            sources: if arguments.outside { 1 << 10 } else { 0 },
            ..Capacity::default()
        },
        tcp_peer: TcpPeer::Endpoint,
        accounting: false,
        exclusions: false,
        observe: false,
        count_all: false,
        serves_guests: false,
        tc_attach: Default::default(),
        xdp: Default::default(),
        all_frontends: arguments.outside.then_some(AllFrontends {
            masquerade_mark: MASQUERADE_MARK,
            host_netns: None,
            returns_directly: false,
        }),
    })?;
    datapath.attach()?;
    let attach = || outside::attach(&mut datapath, &arguments.pin_dir);
    let uplink = arguments.outside.then(attach).transpose()?;
    let store = BpfStore::open(datapath.maps_directory())?;
    let histories = array::from_fn(|_| array::from_fn(|_| History::new()));
    let mut writer = Writer::new(store, &histories, arguments.seed)?;
    accept().context("cannot listen")?;

    let stop = AtomicBool::new(false);
    let begun = Instant::now();
    let report = thread::scope(|scope| -> Result<Report> {
        let cpus = rustix::thread::sched_getaffinity(None).context("cannot read the CPUs")?;
        let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu));
        let mut hammers = Vec::new();
        let (histories, stop_all) = (&histories, &stop);
        for cpu in cpus {
            hammers.push(scope.spawn(move || hammer(cpu, histories, stop_all)));
            if let Some(program) = &uplink {
                let send = move || outside::send(cpu, program, histories, stop_all);
                hammers.push(scope.spawn(send));
            }
        }
        let writer = scope.spawn(|| writer.run(&stop));
        while begun.elapsed() < Duration::from_secs(arguments.seconds)
            && !writer.is_finished()
            && !hammers.iter().any(thread::ScopedJoinHandle::is_finished)
        {
            thread::sleep(Duration::from_millis(50));
        }
        stop.store(true, Ordering::Relaxed);
        let mut report = Report::default();
        for hammer in hammers {
            report.add(hammer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        report.changes = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(report)
    })?;
    ensure!(report.connections > 0 && report.changes > 0, "nothing was done");
    Ok(report)
}

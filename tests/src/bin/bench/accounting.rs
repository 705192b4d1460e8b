//! What accounting costs a short TCP connection: the same connections with the program attached, and
//! without, in turns. And the time of the walk over open connections.

use std::net::Ipv4Addr;
use std::os::fd::AsFd as _;

use anyhow::{Context as _, Error, Result, ensure};
use aya_obj::generated::bpf_attach_type::BPF_CGROUP_SOCK_OPS;
use fs_err as fs;
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use topo_lb_kernel::datapath::attach::walk;
use topo_lb_kernel::datapath::host::syscall;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::population::{Population, SERVICE_PORT};
use topo_lb_tests::requirements::walks;
use topo_lb_tests::wait::{PATIENCE, until};

use crate::exchange::{Act, BYTES, HELD_PORTS, Targets};
use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;

/// Connections of a turn.
const TURN: u32 = 2_000;
const SERVICES: u32 = 100;
/// A Service whose connections nobody accepts and nobody ends.
const HELD: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 15);

fn held(ground: &Ground<'_>) -> Result<Vec<Value>> {
    let (a, b) = (ground.cluster.pod("a")?, ground.cluster.pod("b")?);
    let endpoints =
        [endpoint(&a.ipv4.to_string(), HERE, "a"), endpoint(&b.ipv4.to_string(), HERE, "b")];
    let mut objects =
        vec![service("held", &[&HELD.to_string()], &[("http", SERVICE_PORT, "TCP")], &[])];
    objects.extend(HELD_PORTS.map(|port| {
        let mut slice = slice("held", "IPv4", &[("http", port, "TCP")], &endpoints);
        slice["metadata"]["name"] = format!("held-{port}").into();
        slice
    }));
    Ok(objects)
}

/// The processor time of a walk over 100,000 connections, each of which has moved bytes since the last one.
fn walk(ground: &Ground<'_>, agent: &Agent<'_>, effort: Effort) -> Result<Figure> {
    let connections = effort.of(2_000, 100_000);
    // A process may not have this many descriptors.
    let mut clients = (0..10).map(|_| ground.inside("client")).collect::<Result<Vec<_>>>()?;
    let targets = Targets::one((HELD, SERVICE_PORT).into());
    ensure!(agent.pins().join("links/walk4").exists(), "the agent does not walk");
    let mut times = Sample::default();
    let rounds = effort.of(3, 6);
    for round in 0..rounds {
        for client in &mut clients {
            client.times(Act::Hold, targets, connections / 10)?;
        }
        let before = spent();
        walk::run(agent.pins())
            .map_err(|(path, error)| Error::new(error).context(path.display().to_string()))?;
        // Bytes count when their acknowledgement is there, perhaps only at the next walk.
        if round > 0 {
            times.add((spent() - before) * 1e3);
        }
    }
    until("all bytes to be counted", PATIENCE, || {
        let metrics = agent.get("/metrics")?;
        let sent = metrics.body.lines().filter(|line| line.starts_with(SENT));
        let values = sent.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
        let moved: f64 = values.sum();
        // Of an open connection, up to two bytes wait for its end.
        let missing = f64::from(rounds) * BYTES as f64 - moved / f64::from(connections);
        Ok(if (0.0..=2.0).contains(&missing) { Ok(()) } else { Err(moved) })
    })?;
    let figure = Figure::new("walk_100k_ms", "ms", &times).with("connections", connections);
    Ok(figure.at_most(100.0))
}

const SENT: &str = "topo_lb_tcp_sent_bytes_total{namespace=\"default\",service=\"held\"";

/// The processor time of this thread, in seconds.
fn spent() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    say("accounting");
    let population = ground.population(SERVICES, ["a", "b"])?;
    let manifests = ground.manifests(&population, &held(ground)?)?;
    let agent = ground.agent(("--manifests", &manifests), &[])?;
    let mut client = ground.inside("client")?;
    let targets = Targets::one((Population::frontend(SERVICES / 2), SERVICE_PORT).into());
    ground.reach(&mut client, targets)?;

    let walk = match walks() {
        true => Some(walk(ground, &agent, effort)?),
        false => None,
    };

    let link = agent.pins().join("links/accounting");
    let (_, info) = syscall::open_link(&link)?.context("the agent does not account")?;
    let program = syscall::program_by_id(info.program)?;
    // From now on, this process attaches it.
    fs::remove_file(&link)?;
    let node = ground.cluster.node(HERE)?;
    let cgroup = fs::File::open(node.cgroup_path())?;
    let (mut processor, mut latency) = (Sample::default(), Sample::default());
    for round in 0..=effort.of(8, 60) {
        let mut turns = [(0.0, 0.0); 2];
        // The order changes, because the second turn may find warmer caches.
        for on in [round % 2 == 0, round % 2 != 0] {
            let attached = on.then(|| {
                syscall::link_cgroup(program.as_fd(), cgroup.as_fd(), BPF_CGROUP_SOCK_OPS, 0)
            });
            let attached = attached.transpose()?;
            let before = node.processor_time()?;
            let mut times = Sample::default();
            let spent = client.times(Act::Exchange, targets, TURN)?;
            times.extend(spent.iter().map(|&nanoseconds| nanoseconds as f64));
            let used = node.processor_time()?.saturating_sub(before);
            turns[usize::from(on)] = (used.as_secs_f64(), times.median());
            drop(attached);
        }
        // The first round warms the caches.
        if round > 0 {
            let [(processor_off, latency_off), (processor_on, latency_on)] = turns;
            processor.add(processor_on / processor_off);
            latency.add(latency_on / latency_off);
        }
    }
    let ratios = [
        Figure::new("accounting_processor_ratio", "ratio", &processor).at_most(1.03),
        Figure::new("accounting_exchange_ratio", "ratio", &latency).at_most(1.03),
    ];
    Ok(walk.into_iter().chain(ratios).collect())
}

//! What accounting costs a short TCP connection: the same connections with the program attached, and
//! without, in turns: connections to Services, and with `--count all` those that are not translated. And the time of the
//! walk over open connections. And what `connect` costs where it finds nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Error, Result, ensure};
use aya_obj::generated::bpf_attach_type::{BPF_CGROUP_INET4_CONNECT, BPF_CGROUP_SOCK_OPS};
use aya_obj::generated::bpf_prog_type;
use aya_obj::generated::bpf_prog_type::{BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_PROG_TYPE_SOCK_OPS};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;
use topo_lb_kernel::datapath::attach::walk;
use topo_lb_kernel::datapath::host::syscall;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::population::{Population, SERVICE_PORT};
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements::walks;
use topo_lb_tests::wait::{PATIENCE, until};

use crate::exchange::{Act, BYTES, Dialler, HELD_PORTS, PORT, Targets};
use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;

/// Connections of a turn.
const TURN: u32 = 2_000;
const SERVICES: u32 = 100;
/// A Service whose connections nobody accepts and nobody ends.
const HELD: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 15);
/// A Service that topo-lb leaves to another proxy.
const LEFT: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 14);

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
pub(crate) fn spent() -> f64 {
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

    let rounds = effort.of(8, 60);
    let [processor, latency] = turns(ground, &agent, &mut client, targets, rounds, ACCOUNTING)?;
    let ratios = [
        Figure::new("accounting_processor_ratio", "ratio", &processor).at_most(1.03),
        Figure::new("accounting_exchange_ratio", "ratio", &latency).at_most(1.03),
    ];
    drop(agent);
    let untranslated = untranslated(ground, &mut client, &population, effort, say)?;
    Ok(walk.into_iter().chain(ratios).chain(untranslated).collect())
}

/// What `--count all` costs connections that topo-lb does not translate: those that rules of nftables send to a pod, as
/// kube-proxy's do, and those that dial the pod.
fn untranslated(
    ground: &Ground<'_>,
    client: &mut Dialler,
    population: &Population,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let pod = SocketAddr::from((ground.cluster.pod("a")?.ipv4, PORT));
    let left = SocketAddr::from((LEFT, SERVICE_PORT));
    let ports = [("http", SERVICE_PORT, "TCP")];
    let endpoint = [endpoint(&pod.ip().to_string(), HERE, "a")];
    let objects = [
        service("left", &[&LEFT.to_string()], &ports, &[("topo-lb.io/handle", "false")]),
        slice("left", "IPv4", &[("http", PORT, "TCP")], &endpoint),
    ];
    let manifests = ground.manifests(population, &objects)?;
    let node = ground.cluster.node(HERE)?;
    let nft = |text: String| -> Result<()> {
        let mut command = Command::new("nft");
        command.arg(text);
        ground.cluster.beside(node, &mut command)?;
        printed(&mut command).map(drop)
    };
    let (address, port) = (left.ip(), left.port());
    nft(format!(
        "table ip proxy {{ chain services {{ type nat hook prerouting priority dstnat; \
         ip daddr {address} tcp dport {port} dnat to {pod}; }}; }}"
    ))?;
    let mut figures = Vec::new();
    for (way, target) in [("left", left), ("direct", pod)] {
        say(&format!("accounting of all, {way}"));
        let agent = ground.agent(("--manifests", &manifests), &[("--count", "all")])?;
        let targets = Targets::one(target);
        ground.reach(client, targets)?;
        let rounds = effort.of(8, 60);
        let [processor, latency] = turns(ground, &agent, client, targets, rounds, ACCOUNTING)?;
        let counted = format!("tier=\"{way}\"}}");
        until("connections to be counted", PATIENCE, || {
            let metrics = agent.get("/metrics")?;
            let mut lines = metrics.body.lines();
            let is_counted = |line: &str| line.starts_with(ENDED) && line.contains(&counted);
            Ok(if lines.any(is_counted) { Ok(()) } else { Err("none is") })
        })?;
        figures.extend([
            Figure::new("untranslated_processor_ratio", "ratio", &processor)
                .with("way", way)
                .at_most(1.03),
            Figure::new("untranslated_exchange_ratio", "ratio", &latency).with("way", way),
        ]);
    }
    nft("delete table ip proxy".to_owned())?;
    figures.push(missed(ground, client, effort, say)?);
    Ok(figures)
}

/// What it costs to look a destination up that is neither a frontend nor one of 100,000 endpoints: the program of
/// `connect` by one that does nothing in its link.
fn missed(
    ground: &Ground<'_>,
    client: &mut Dialler,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Figure> {
    let services = effort.of(1_000, 10_000);
    say("connects to no endpoint");
    let population = Population { annotates: false, ..Population::new(HERE, 3, services, 10) };
    let manifests = ground.manifests(&population, &[])?;
    let agent = ground.agent(("--manifests", &manifests), &[("--count", "all")])?;
    let targets = Targets::one((ground.cluster.pod("a")?.ipv4, PORT).into());
    ground.reach(client, targets)?;
    let [_, latency] = turns(ground, &agent, client, targets, effort.of(8, 60), CONNECT)?;
    let figure = Figure::new("missed_endpoint_ratio", "ratio", &latency);
    Ok(figure.with("endpoints", services * 10).at_most(1.01))
}

/// A link that the agent pins, and the type of its program with that of its place.
type Link = (&'static str, bpf_prog_type, u32);
const ACCOUNTING: Link = ("accounting", BPF_PROG_TYPE_SOCK_OPS, BPF_CGROUP_SOCK_OPS as u32);
const CONNECT: Link = ("connect4", BPF_PROG_TYPE_CGROUP_SOCK_ADDR, BPF_CGROUP_INET4_CONNECT as u32);

const ENDED: &str = "topo_lb_tcp_ended_connections_total{";

/// Processor time and median time of a connection, with a program by one that does nothing in its link: the agent would
/// put a link back that is gone.
fn turns(
    ground: &Ground<'_>,
    agent: &Agent<'_>,
    client: &mut Dialler,
    targets: Targets,
    rounds: u32,
    (name, program_type, place): Link,
) -> Result<[Sample; 2]> {
    let link = agent.pins().join("links").join(name);
    let (link, info) = syscall::open_link(&link)?.context("the agent has no such link")?;
    let program = syscall::program_by_id(info.program)?;
    let nothing = syscall::load_empty(program_type, place)?;
    let node = ground.cluster.node(HERE)?;
    // What the agent does counts, too.
    let used = || -> Result<Duration> {
        Ok(node.processor_time()? + ground.cluster.agents().processor_time()?)
    };
    let (mut processor, mut latency) = (Sample::default(), Sample::default());
    for round in 0..=rounds {
        let mut turns = [(0.0, 0.0); 2];
        // The order changes, because the second turn may find warmer caches.
        for on in [round % 2 == 0, round % 2 != 0] {
            syscall::update_link(link.as_fd(), if on { program.as_fd() } else { nothing.as_fd() })?;
            let before = used()?;
            let mut times = Sample::default();
            let spent = client.times(Act::Exchange, targets, TURN)?;
            times.extend(spent.iter().map(|&nanoseconds| nanoseconds as f64));
            let used = used()?.saturating_sub(before);
            turns[usize::from(on)] = (used.as_secs_f64(), times.median());
        }
        // The first round warms the caches.
        if round > 0 {
            let [(processor_off, latency_off), (processor_on, latency_on)] = turns;
            processor.add(processor_on / processor_off);
            latency.add(latency_on / latency_off);
        }
    }
    Ok([processor, latency])
}

//! What a packet costs in the programs of tc: their run time as `bpftool prog show` reports it with
//! `kernel.bpf_stats_enabled=1`, of packets that the kernel makes for it (`BPF_PROG_TEST_RUN`).
//!
//! `cargo run -p topo-lb --example tc_cost [-- [--json] [SERVICES]]`, as root. Programs and maps are
//! private to it, and attached to nothing: no packet leaves, and an agent that runs is not touched.
//! What is measured is the object of `cargo xtask build-ebpf`, so its own profile does not matter.
//!
//! Keeping the time takes time itself, which every figure contains: the empty program's is little
//! else. Each case is run many times for a short while, by turns with all others: on a machine that
//! is used, the least tells what the program takes. First packets come one by one, each by a system
//! call of its own, so that caches are colder.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use aya::programs::{ProgramInfo, SchedClassifier, TestRun, TestRunOptions};
use aya::sys::{Stats, enable_stats};
use serde::Serialize;
use topo_lb::datapath::probe::{kernel_release, pin_empty_classifier};
use topo_lb_common::address::TCP;
use topo_lb_common::connection::{
    Connection4, Connection6, FROM_CLIENT, REPLY, TO_CLIENT, Tuple4, Tuple6,
};
use topo_lb_tests::packets::{Hook, NEXT, Programs};

/// Packets in a run, and runs.
const REPEAT: u32 = 20_000;
const RUNS: usize = 300;
/// First packets in a run: each is another connection.
const FIRST: u32 = 100;

/// A client, a Service, one that is none, an endpoint.
struct Cast {
    family: &'static str,
    client: SocketAddr,
    service: SocketAddr,
    nobody: SocketAddr,
    endpoint: SocketAddr,
}

const CASTS: [Cast; 2] = [
    Cast {
        family: "IPv4",
        client: four([10, 244, 1, 9], 40_000),
        service: four([10, 96, 0, 1], 80),
        nobody: four([10, 96, 0, 1], 81),
        endpoint: four([10, 244, 1, 3], 9376),
    },
    Cast {
        family: "IPv6",
        client: six([0xfd00, 0x244, 1, 0, 0, 0, 0, 9], 40_000),
        service: six([0xfd00, 0x96, 0, 0, 0, 0, 0, 1], 80),
        nobody: six([0xfd00, 0x96, 0, 0, 0, 0, 0, 1], 81),
        endpoint: six([0xfd00, 0x244, 1, 0, 0, 0, 0, 3], 9376),
    },
];

const fn four([a, b, c, d]: [u8; 4], port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), port)
}

const fn six([a, b, c, d, e, f, g, h]: [u16; 8], port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), port)
}

/// One line of the result.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    median: f64,
    p99: f64,
    unit: &'static str,
    #[serde(skip)]
    least: f64,
}

impl Row {
    fn new(name: impl Into<String>, mut samples: Vec<f64>) -> Self {
        samples.sort_by(f64::total_cmp);
        let at = |share: f64| samples[((samples.len() - 1) as f64 * share) as usize];
        Self { name: name.into(), median: at(0.5), p99: at(0.99), unit: "ns", least: at(0.0) }
    }
}

fn main() -> Result<()> {
    let (mut json, mut services) = (false, 10_000);
    for argument in std::env::args().skip(1) {
        if argument == "--json" {
            json = true;
        } else {
            services = argument.parse().context("arguments: --json, and how many Services")?;
        }
    }
    ensure!((1..=50_000).contains(&services), "1 to 50000 Services");
    let rows = measure(services)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(());
    }
    println!("Linux {}, {services} Services of one endpoint", kernel_release());
    println!("{:<44} {:>7} {:>7} {:>7}", "ns per packet", "least", "median", "p99");
    for Row { name, least, median, p99, .. } in rows {
        println!("{name:<44} {least:>7.0} {median:>7.0} {p99:>7.0}");
    }
    Ok(())
}

fn measure(services: u32) -> Result<Vec<Row>> {
    let mut programs = Programs::with_room(services.max(1_024) * 4)?;
    let empty = empty()?;
    // Others, so that tables are as large as in a cluster; the last ones are the cast's.
    for index in 1..services {
        let [_, b, c, d] = index.to_be_bytes();
        programs.serve(index, four([10, 96 + b, c, d.max(2)], 80), TCP, &[CASTS[0].endpoint])?;
    }
    for (index, cast) in (services..).zip(&CASTS) {
        programs.serve(index, cast.service, TCP, &[cast.endpoint])?;
    }
    for cast in &CASTS {
        shuttle(&mut programs, cast)?;
    }

    let mut cases = vec![("not IP, either way".to_owned(), Hook::Ingress, not_ip())];
    for cast in &CASTS {
        let mut case = |name: &str, hook, from, to| {
            let packet = tcp(from, to, ACK, 1);
            cases.push((format!("{}: {name}", cast.family), hook, packet));
        };
        let Cast { client, service, nobody, endpoint, .. } = *cast;
        let elsewhere = SocketAddr::new(endpoint.ip(), 443);
        case("ingress, not ours", Hook::Ingress, client, elsewhere);
        case("ingress, in the range, no Service", Hook::Ingress, client, nobody);
        case("egress, not ours", Hook::Egress, elsewhere, client);
        case("ingress, established", Hook::Ingress, client, service);
        case("egress, established", Hook::Egress, endpoint, client);
    }
    let _stats = enable_stats(Stats::RunTime)?;
    let mut samples = vec![Vec::new(); cases.len()];
    let mut nothing = Vec::new();
    for _ in 0..RUNS {
        let before = empty.info()?;
        empty.test_run(options(&not_ip()))?;
        nothing.push(mean(&before, &empty.info()?));
        for ((_, hook, packet), samples) in cases.iter().zip(&mut samples) {
            let before = programs.info(*hook)?;
            programs.time(*hook, packet, REPEAT)?;
            samples.push(mean(&before, &programs.info(*hook)?));
        }
    }
    let mut rows = vec![Row::new("an empty program", nothing)];
    let named = cases.into_iter().zip(samples);
    rows.extend(named.map(|((name, ..), samples)| Row::new(name, samples)));
    for cast in &CASTS {
        let mut samples = Vec::new();
        for run in 0..RUNS as u32 {
            let before = programs.info(Hook::Ingress)?;
            for place in 0..FIRST {
                let mut client = cast.client;
                client.set_port((1_024 + (run * FIRST + place) % 30_000) as u16);
                // Another number each time: another connection.
                let packet = tcp(client, cast.service, SYN, run * FIRST + place + 2);
                let (verdict, _) = programs.run(Hook::Ingress, &packet)?;
                ensure!(verdict == NEXT, "a first packet has the verdict {verdict}");
            }
            samples.push(mean(&before, &programs.info(Hook::Ingress)?));
        }
        rows.push(Row::new(format!("{}: ingress, first packet", cast.family), samples));
    }
    Ok(rows)
}

fn mean(before: &ProgramInfo, after: &ProgramInfo) -> f64 {
    let runs = after.run_count() - before.run_count();
    (after.run_time() - before.run_time()).as_nanos() as f64 / runs.max(1) as f64
}

fn options(packet: &[u8]) -> TestRunOptions<'_> {
    let mut options = TestRunOptions::new();
    options.data_in = Some(packet);
    options.repeat = REPEAT;
    options
}

/// What any program costs: one that lets every packet go on.
fn empty() -> Result<SchedClassifier> {
    let pin = PathBuf::from(format!("/sys/fs/bpf/tc-cost-{}", std::process::id()));
    pin_empty_classifier(&pin).with_context(|| format!("cannot pin {}", pin.display()))?;
    let program = SchedClassifier::from_pin(&pin);
    fs::remove_file(&pin)?;
    Ok(program?)
}

/// An established connection each way. A run translates one and the same packet again and again, so
/// each entry makes a packet what another entry takes back.
fn shuttle(programs: &mut Programs, cast: &Cast) -> Result<()> {
    let Cast { client, service, endpoint, .. } = *cast;
    let back = SocketAddr::new(service.ip(), 8080);
    for (way, kind, said, says) in [
        (FROM_CLIENT, 0, (client, service), (client, back)),
        (FROM_CLIENT, 0, (client, back), (client, service)),
        (TO_CLIENT, REPLY, (endpoint, client), (service, client)),
        (TO_CLIENT, REPLY, (service, client), (endpoint, client)),
    ] {
        let ports =
            |(source, destination): (SocketAddr, SocketAddr)| (source.port(), destination.port());
        let (said_ports, says_ports) = (ports(said), ports(says));
        match (said.0.ip(), said.1.ip(), says.0.ip(), says.1.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b), IpAddr::V4(c), IpAddr::V4(d)) => programs.remember4(
                Tuple4 {
                    source: a.octets(),
                    destination: b.octets(),
                    source_port: said_ports.0,
                    destination_port: said_ports.1,
                    protocol: TCP,
                    way,
                    reserved: 0,
                },
                Connection4 {
                    source: c.octets(),
                    destination: d.octets(),
                    source_port: says_ports.0,
                    destination_port: says_ports.1,
                    kind,
                    state: topo_lb_common::connection::ANSWERED,
                    ..Connection4::default()
                },
            )?,
            (IpAddr::V6(a), IpAddr::V6(b), IpAddr::V6(c), IpAddr::V6(d)) => programs.remember6(
                Tuple6 {
                    source: a.octets(),
                    destination: b.octets(),
                    source_port: said_ports.0,
                    destination_port: said_ports.1,
                    protocol: TCP,
                    way,
                    reserved: 0,
                },
                Connection6 {
                    source: c.octets(),
                    destination: d.octets(),
                    source_port: says_ports.0,
                    destination_port: says_ports.1,
                    kind,
                    state: topo_lb_common::connection::ANSWERED,
                    ..Connection6::default()
                },
            )?,
            _ => unreachable!("a cast is of one family"),
        }
    }
    Ok(())
}

/// SYN and ACK of TCP's flags.
const SYN: u8 = 2;
const ACK: u8 = 16;

/// An Ethernet frame of ARP.
fn not_ip() -> Vec<u8> {
    let mut packet = vec![2; 12];
    packet.extend_from_slice(&[8, 6]);
    packet.resize(60, 0);
    packet
}

/// A TCP segment without payload. Its checksums are wrong, and stay so: to update one costs what
/// it costs.
fn tcp(from: SocketAddr, to: SocketAddr, flags: u8, number: u32) -> Vec<u8> {
    let mut packet = vec![2; 12];
    match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            packet.extend_from_slice(&[8, 0, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, TCP, 0, 0]);
            packet.extend_from_slice(&from.octets());
            packet.extend_from_slice(&to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            packet.extend_from_slice(&[0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, TCP, 64]);
            packet.extend_from_slice(&from.octets());
            packet.extend_from_slice(&to.octets());
        }
        _ => unreachable!("a cast is of one family"),
    }
    packet.extend_from_slice(&from.port().to_be_bytes());
    packet.extend_from_slice(&to.port().to_be_bytes());
    packet.extend_from_slice(&number.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0x12, 0x34, 0, 0]);
    packet
}

//! The cost of a packet in the tc programs at its best: the kernel runs one packet through them
//! many times (`BPF_PROG_TEST_RUN`), so that everything they touch is in the nearest cache.
//!
//! Programs and maps are private, and attached to no device. First packets need one system call
//! each, so their caches are colder.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use anyhow::{Result, ensure};
use aya::programs::{TestRun as _, TestRunOptions};
use topo_lb_common::address::TCP;
use topo_lb_tests::frame::{NODE_MAC, Tcp, VM_MAC, tcp};
use topo_lb_tests::packets::{Hook, NEXT, Programs};
use topo_lb_tests::population::{Population, SERVICE_PORT};

use crate::ground::Effort;
use crate::program::{Runs, empty_classifier};
use crate::result::Figure;
use crate::sample::Sample;

/// Runs per measurement of one packet.
const REPEAT: u32 = 20_000;
/// First packets per measurement, each of another connection.
const FIRST: u32 = 100;

/// A client, a Service, an unused address in the frontends' range, an endpoint.
#[derive(Clone, Copy)]
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

/// One path of a packet through a program.
struct Case {
    hook: Hook,
    family: Option<&'static str>,
    name: &'static str,
    packet: Vec<u8>,
    times: Sample,
}

impl Case {
    fn new(hook: Hook, family: Option<&'static str>, name: &'static str, packet: Vec<u8>) -> Self {
        Self { hook, family, name, packet, times: Sample::default() }
    }

    fn figure(&self, services: u32) -> Figure {
        let direction = match self.hook {
            Hook::Ingress | Hook::ExternalIngress => "ingress",
            Hook::Egress | Hook::ExternalEgress => "egress",
        };
        let figure = figure(self.name, services, &self.times).with("direction", direction);
        match self.family {
            Some(family) => figure.with("family", family),
            None => figure,
        }
    }
}

fn figure(case: &str, services: u32, times: &Sample) -> Figure {
    Figure::new("tc_test_run_ns", "ns", times).with("services", services).with("case", case)
}

/// Measures all paths in turns, among so many Services with one endpoint each. Needs the kernel's
/// run times to be enabled.
pub(crate) fn measure(services: u32, effort: Effort) -> Result<Vec<Figure>> {
    let runs = effort.of(15, 300);
    let mut programs = prepared(services)?;
    let mut cases = cases();
    for case in &cases {
        let (verdict, packet) = programs.run(case.hook, &case.packet)?;
        let is_translated = packet != case.packet;
        ensure!(
            verdict == NEXT && is_translated == (case.name == ESTABLISHED),
            "a packet that is {} has the verdict {verdict}, changed: {is_translated}",
            case.name
        );
    }
    let empty = empty_classifier()?;
    let mut nothing = Sample::default();
    for _ in 0..runs {
        let before = Runs::of(&empty.info()?);
        let mut options = TestRunOptions::new();
        options.data_in = Some(&cases[0].packet);
        options.repeat = REPEAT;
        empty.test_run(options)?;
        nothing.add(mean(before, Runs::of(&empty.info()?), REPEAT)?);
        for case in &mut cases {
            let before = Runs::of(&programs.info(case.hook)?);
            programs.repeat(case.hook, &case.packet, REPEAT)?;
            case.times.add(mean(before, Runs::of(&programs.info(case.hook)?), REPEAT)?);
        }
    }
    for cast in &CASTS {
        let mut case = Case::new(Hook::Ingress, Some(cast.family), "first packet", Vec::new());
        for run in 0..runs {
            let before = Runs::of(&programs.info(case.hook)?);
            for place in 0..FIRST {
                let number = run * FIRST + place;
                let mut client = cast.client;
                client.set_port((1_024 + number % 30_000) as u16);
                case.packet = tcp(client, cast.service, Tcp::Syn(number + 2));
                let (verdict, _) = programs.run(case.hook, &case.packet)?;
                ensure!(verdict == NEXT, "a first packet has the verdict {verdict}");
            }
            case.times.add(mean(before, Runs::of(&programs.info(case.hook)?), FIRST)?);
        }
        cases.push(case);
    }
    let empty = figure("empty program", services, &nothing);
    Ok([empty].into_iter().chain(cases.iter().map(|case| case.figure(services))).collect())
}

const ESTABLISHED: &str = "established";

fn cases() -> Vec<Case> {
    let mut cases = vec![Case::new(Hook::Ingress, None, "not IP", arp())];
    for &Cast { family, client, service, nobody, endpoint } in &CASTS {
        let elsewhere = SocketAddr::new(endpoint.ip(), 443);
        let neighbour = SocketAddr::new(client.ip(), 50_000);
        let mut case = |hook, name, from, to| {
            cases.push(Case::new(hook, Some(family), name, tcp(from, to, Tcp::Ack)));
        };
        case(Hook::Ingress, "not ours", client, elsewhere);
        case(Hook::Ingress, "in the range, no Service", client, nobody);
        case(Hook::Egress, "not ours", elsewhere, client);
        case(Hook::Egress, "not ours, of an endpoint", endpoint, neighbour);
        case(Hook::Ingress, ESTABLISHED, client, service);
        case(Hook::Egress, ESTABLISHED, endpoint, client);
    }
    cases
}

/// The programs with so many Services, so that the maps are as large as in a cluster, and for each
/// cast its Service and an established connection.
fn prepared(services: u32) -> Result<Programs> {
    let mut programs = Programs::with_room(services.max(1_024) * 4)?;
    for index in 1..services {
        let frontend = (Population::frontend(index), SERVICE_PORT).into();
        programs.serve(index, frontend, TCP, &[CASTS[0].endpoint])?;
    }
    for (index, cast) in (services..).zip(&CASTS) {
        programs.serve(index, cast.service, TCP, &[cast.endpoint])?;
    }
    for &Cast { client, service, endpoint, .. } in &CASTS {
        // A run translates the same packet repeatedly: a second entry reverses the first one.
        let shuttle = SocketAddr::new(service.ip(), 8080);
        for (hook, here, there) in [
            (Hook::Ingress, (client, service), (client, shuttle)),
            (Hook::Egress, (endpoint, client), (service, client)),
        ] {
            programs.remember(hook, here, there)?;
            programs.remember(hook, there, here)?;
        }
    }
    Ok(programs)
}

/// The mean run time between two readings; fails unless the kernel counted `wanted` runs.
fn mean(before: Runs, after: Runs, wanted: u32) -> Result<f64> {
    let (mean, count) = after.since(before);
    ensure!(count == u64::from(wanted), "the kernel has counted {count} runs of {wanted}");
    Ok(mean)
}

/// A frame that is not IP: type ARP, the minimum length of Ethernet.
fn arp() -> Vec<u8> {
    let mut packet = [NODE_MAC, VM_MAC].concat();
    packet.extend_from_slice(&[8, 6]);
    packet.resize(60, 0);
    packet
}

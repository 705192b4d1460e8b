//! What a packet costs at the tc hooks, by the kernel's own clock: `BPF_PROG_TEST_RUN` repeats a
//! program on one packet and says what a run took.
//!
//! `cargo run --release -p topo-lb-tests --example tc_cost [-- SERVICES]`, as root. Programs and
//! maps are private to it. Each run gets the packet as the one before has left it, so every
//! figure but the first packet's is of a packet whose translation is already done once: the same
//! look-ups, the same writes.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use etherparse::PacketBuilder;
use topo_lb_common::address::{TCP, UDP};
use topo_lb_tests::packets::{Hook, Programs};

const REPEAT: u32 = 100_000;
const ROUNDS: usize = 15;

fn main() -> Result<()> {
    let services: u32 = match std::env::args().nth(1) {
        Some(count) => count.parse().context("the argument is the number of Services")?,
        None => 500,
    };
    let mut programs = Programs::load()?;
    let endpoint: SocketAddr = "10.96.9.9:9376".parse()?;
    for index in 0..services {
        let frontend = SocketAddr::from(([10, 96, (index >> 8) as u8, index as u8], 80));
        programs.serve(index, frontend, TCP, &[endpoint])?;
    }
    // An endpoint that is the frontend itself: what is translated is to be translated again.
    let web: SocketAddr = "10.96.200.1:80".parse()?;
    let client: SocketAddr = "10.244.1.9:40000".parse()?;
    programs.serve(services, web, TCP, &[web])?;
    programs.serve(services + 1, web, UDP, &[web])?;
    let rows = [
        (
            "not ours, from a client (TCP, another address)",
            Hook::Ingress,
            tcp(client, "10.244.2.2:9376".parse()?, false),
        ),
        (
            "not ours, from a client (in the range)",
            Hook::Ingress,
            tcp(client, "10.96.200.1:81".parse()?, false),
        ),
        (
            "not ours, to a client (TCP)",
            Hook::Egress,
            tcp("10.244.2.2:9376".parse()?, client, false),
        ),
        ("first packet: a SYN, and the same again", Hook::Ingress, tcp(client, web, true)),
        ("established, from a client (TCP)", Hook::Ingress, tcp(client, web, false)),
        ("established, to a client (TCP)", Hook::Egress, tcp(web, client, false)),
    ];
    let mut other = tcp(client, web, false);
    other[12..14].copy_from_slice(&[0x88, 0xb5]);
    let rows =
        [("no IP: what any program costs here", Hook::Ingress, other)].into_iter().chain(rows);
    for (what, hook, packet) in rows {
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            times.push(programs.time(hook, &packet, REPEAT)?);
        }
        times.sort_unstable();
        println!(
            "{what:<50} {:>5} ns (least {})",
            times[ROUNDS / 2].as_nanos(),
            times[0].as_nanos()
        );
    }
    println!("{:?}\n{:?}", programs.totals(Hook::Ingress)?, programs.totals(Hook::Egress)?);
    Ok(())
}

fn tcp(from: SocketAddr, to: SocketAddr, syn: bool) -> Vec<u8> {
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (from, to) else { return Vec::new() };
    let tcp = PacketBuilder::ethernet2([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2])
        .ipv4(from.ip().octets(), to.ip().octets(), 64)
        .tcp(from.port(), to.port(), 1, 64_000);
    let tcp = if syn { tcp.syn() } else { tcp.ack(1) };
    let mut packet = Vec::new();
    // A vector takes everything.
    let _ = tcp.write(&mut packet, &[0; 64]);
    packet
}

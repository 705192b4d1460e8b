//! Session affinity of clients without a socket on the node: by their address.

use std::net::SocketAddr;

use anyhow::{Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_tests::frame::{self, ACK, RST, Tcp, segment};
use topo_lb_tests::packets::{Hook, NEXT, Programs};

use super::budgets::{FAMILIES, Parts, complete};
use super::scene::at;

/// Entries of `clients4/6`.
const ROOM: u32 = 8_192;

/// Clients that try to evict others: more than there is room for.
const OTHERS: u16 = 12_000;

/// Programs with a Service of two endpoints that keeps its clients, over TCP and UDP.
fn keeping(parts: &Parts) -> Result<Programs> {
    let mut programs = Programs::replacing_with_room(ROOM)?;
    programs.keep_clients_for(600);
    let both = [(at(parts.a), Locality::Node), (at(parts.b), Locality::Node)];
    for (index, protocol) in [(1, TCP), (2, UDP)] {
        programs.expose(index, at(parts.web), protocol, &both)?;
    }
    Ok(programs)
}

/// Sends what opens a connection to the Service; returns its endpoint.
fn dial(
    programs: &mut Programs,
    parts: &Parts,
    client: SocketAddr,
    protocol: u8,
) -> Result<SocketAddr> {
    let packet = if protocol == TCP {
        frame::tcp(client, at(parts.web), Tcp::Syn(999))
    } else {
        frame::udp(client, at(parts.web), b"who?")
    };
    let (verdict, out) = programs.run(Hook::ExternalIngress, &packet)?;
    ensure!(verdict == NEXT, "verdict {verdict}");
    Ok(frame::says(&out)?.1)
}

/// The same until the connection is established, or the datagram answered.
fn call(
    programs: &mut Programs,
    parts: &Parts,
    client: SocketAddr,
    protocol: u8,
) -> Result<SocketAddr> {
    let endpoint = dial(programs, parts, client, protocol)?;
    if protocol == TCP {
        complete(programs, client, parts.web, &endpoint.to_string())?;
    } else {
        programs.run(Hook::ExternalEgress, &frame::udp(endpoint, client, b"I"))?;
    }
    Ok(endpoint)
}

/// Checks that what others do moves no client of 40 that have dialled once.
fn expect_kept(
    parts: &Parts,
    others: impl FnOnce(&mut Programs) -> Result<()>,
    protocols: &[u8],
) -> Result<()> {
    let mut programs = keeping(parts)?;
    let mut before = Vec::new();
    for network in 0..40 {
        for &protocol in protocols {
            let client = parts.client(network, 20_000)?;
            let endpoint = call(&mut programs, parts, client, protocol)?;
            before.push((network, protocol, endpoint));
        }
    }
    others(&mut programs)?;
    let mut moved = 0;
    for &(network, protocol, endpoint) in &before {
        let again = dial(&mut programs, parts, parts.client(network, 30_000)?, protocol)?;
        moved += usize::from(again != endpoint);
    }
    ensure!(moved == 0, "{moved} of {} clients at {} have moved", before.len(), parts.web);
    Ok(())
}

#[test]
fn datagrams_with_false_sources_move_nobody() -> Result<()> {
    for parts in FAMILIES {
        let others = |programs: &mut Programs| {
            (100..100 + OTHERS).try_for_each(|network| {
                call(programs, &parts, parts.client(network, 20_000)?, UDP).map(drop)
            })
        };
        expect_kept(&parts, others, &[TCP, UDP])?;
    }
    Ok(())
}

#[test]
fn one_host_with_all_addresses_of_its_network_moves_nobody() -> Result<()> {
    let [_, parts] = FAMILIES;
    let others = |programs: &mut Programs| {
        (1..=OTHERS).try_for_each(|host| {
            let client = format!("[2001:db8:0:ffff:{host:x}::9]:20000").parse()?;
            call(programs, &parts, client, TCP)?;
            let packet = frame::tcp(client, at(parts.web), Tcp::Rst);
            programs.run(Hook::ExternalIngress, &packet).map(drop)
        })
    };
    expect_kept(&parts, others, &[TCP])
}

#[test]
fn a_client_keeps_its_endpoint_once_a_connection_is_established() -> Result<()> {
    for parts in FAMILIES {
        let mut programs = keeping(&parts)?;
        let chosen =
            |programs: &mut Programs, port| dial(programs, &parts, parts.client(0, port)?, TCP);
        // Anybody can send these with a false source, whether the endpoint answers or resets them.
        let mut seen = Vec::new();
        for port in 20_000..20_064 {
            let endpoint = chosen(&mut programs, port)?;
            let reset = segment((endpoint, parts.client(0, port)?), RST | ACK, 0, 1_000, b"");
            programs.run(Hook::ExternalEgress, &reset)?;
            seen.push(endpoint);
        }
        seen.sort_unstable();
        seen.dedup();
        ensure!(seen.len() == 2, "SYNs alone hold the client at {seen:?}");
        let kept = call(&mut programs, &parts, parts.client(0, 30_000)?, TCP)?;
        for port in 0..64 {
            let again = chosen(&mut programs, 40_000 + port)?;
            ensure!(again == kept, "{again}, and not {kept}");
        }
    }
    Ok(())
}

//! What XDP makes of packets of clients outside, beside tc: the harness compares both for each packet.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_common::packets::Packets;
use topo_lb_tests::frame::{self, Tcp, wrong_checksums};
use topo_lb_tests::packets::{BACK, DROP, Hook, NEXT, Programs};
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements::kernel;

use super::scene::{at, tcp, udp};
use super::source_nat::{FAMILIES, Parts, UPLINK, on_node, on_uplink};

/// Opens a connection from this port of the client until it is established. Returns a packet of each direction.
fn establish(
    programs: &mut Programs,
    Parts { client, port, there, .. }: &Parts,
    client_port: u16,
    protocol: u8,
) -> Result<[Vec<u8>; 2]> {
    let client = SocketAddr::new(at(client).ip(), client_port).to_string();
    if protocol == UDP {
        let asks = udp(&client, port);
        let (source, _, _) = on_uplink(programs, "datagram", &asks, BACK)?;
        let answer = frame::udp(at(there), source, b"I");
        on_uplink(programs, "its answer", &answer, BACK)?;
        // Only this one establishes the flow.
        on_uplink(programs, "datagram", &asks, BACK)?;
        return Ok([asks, answer]);
    }
    let (source, _, _) = on_uplink(programs, "SYN", &tcp(&client, port, Tcp::Syn(999)), BACK)?;
    on_uplink(programs, "SYN-ACK", &frame::tcp(at(there), source, Tcp::SynAck), BACK)?;
    on_uplink(programs, "ACK", &tcp(&client, port, Tcp::Bare), BACK)?;
    Ok([tcp(&client, port, Tcp::Ack), frame::tcp(at(there), source, Tcp::Ack)])
}

/// How many of these packets XDP sends back; tc sends all of them on.
fn by_xdp<'a>(
    programs: &mut Programs,
    packets: impl IntoIterator<Item = &'a Vec<u8>>,
) -> Result<u64> {
    let before = programs.done_by_xdp()?.translated;
    for packet in packets {
        on_uplink(programs, "established", packet, BACK)?;
    }
    Ok(programs.done_by_xdp()?.translated - before)
}

#[test]
fn connections_and_their_directions_take_turns_in_going_by_tc() -> Result<()> {
    const CONNECTIONS: u16 = 64;
    /// Half of the period of the programs' `state.rs`.
    const HALF: Duration = Duration::from_nanos(1 << 32);
    if kernel() < (5, 14) {
        return Ok(());
    }
    on_node(|programs| {
        for (parts, protocol) in FAMILIES.iter().flat_map(|it| [(it, TCP), (it, UDP)]) {
            let row = [(at(parts.there), Locality::Zone)];
            programs.expose(1 + u32::from(protocol), at(parts.port), protocol, &row)?;
            let connections: Vec<_> = (0..CONNECTIONS)
                .map(|number| establish(programs, parts, 40_000 + number, protocol))
                .collect::<Result<_>>()?;
            programs.age(HALF * 2)?;
            let [asking, _] = [0, 1].map(|way| connections.iter().map(move |both| &both[way]));
            ensure!(by_xdp(programs, asking)? == 0, "each is due once a period");
            by_xdp(programs, connections.iter().flatten())?;
            programs.age(HALF)?;
            let mut sums = [0, 0];
            for both in &connections {
                let of = [by_xdp(programs, [&both[0]])?, by_xdp(programs, [&both[1]])?];
                ensure!(of != [1, 1], "none is due in half a period");
                sums = [sums[0] + of[0], sums[1] + of[1]];
            }
            // Where a tick begins meanwhile, both may be due.
            let all = u64::from(CONNECTIONS);
            ensure!(sums[0] + sums[1] >= all * 3 / 4, "{sums:?} by XDP");
            ensure!(sums.iter().all(|sum| *sum >= all / 4), "{sums:?} by XDP");
        }
        Ok(())
    })
}

#[test]
fn routes_by_the_type_of_service_are_xdps_too() -> Result<()> {
    if kernel() < (5, 14) {
        return Ok(());
    }
    on_node(|programs| {
        let ip = |family: &str, what: &str| {
            let mut ip = Command::new("ip");
            ip.arg(family).args(what.split(' '));
            printed(&mut ip).map(drop)
        };
        for (parts, family) in FAMILIES.iter().zip(["-4", "-6"]) {
            programs.expose(1, at(parts.port), TCP, &[(at(parts.there), Locality::Zone)])?;
            let both = establish(programs, parts, 40_000, TCP)?;
            ip(family, "rule add tos 0x10 table 100")?;
            ip(family, "route add default dev pod table 100")?;
            // Where a period ends meanwhile, the first ones are tc's.
            by_xdp(programs, &both)?;
            ensure!(by_xdp(programs, &both)? == 2, "without a type of service");
            let with = both.map(|mut packet| {
                if parts.is_v6 {
                    packet[14..16].copy_from_slice(&[0x61, 0]);
                } else {
                    packet[15] = 0x10;
                    let sum = u16::from_be_bytes([packet[24], packet[25]]);
                    packet[24..26].copy_from_slice(&(sum - 0x10).to_be_bytes());
                }
                packet
            });
            for packet in &with {
                ensure!(wrong_checksums(packet)?.is_empty(), "the packet itself");
            }
            ensure!(by_xdp(programs, &with)? == 0, "by another device");
            ip(family, "rule delete tos 0x10 table 100")?;
            by_xdp(programs, &with)?;
            ensure!(by_xdp(programs, &with)? == 2, "by the uplink");
        }
        Ok(())
    })
}

#[test]
fn a_neighbour_without_an_address_is_tcs() -> Result<()> {
    if kernel() < (5, 14) {
        return Ok(());
    }
    on_node(|programs| {
        for (parts, router) in FAMILIES.iter().zip(["172.18.0.1", "fd00:18::1"]) {
            programs.expose(1, at(parts.port), TCP, &[(at(parts.there), Locality::Zone)])?;
            let both = establish(programs, parts, 40_000, TCP)?;
            by_xdp(programs, &both)?;
            ensure!(by_xdp(programs, &both)? == 2, "with its address");
            // Before Linux 6.3 a look-up names one of which the kernel has yet to hear.
            let mut ip = Command::new("ip");
            let of = ["lladdr", "00:00:00:00:00:00", "dev", "uplink", "nud", "permanent"];
            printed(ip.args(["neigh", "replace", router]).args(of))?;
            ensure!(by_xdp(programs, &both)? == 0, "XDP sends to no address");
        }
        Ok(())
    })
}

#[test]
fn xdp_drops_what_source_ranges_deny_and_leaves_what_is_open_or_for_another_host() -> Result<()> {
    on_node(|programs| {
        let allowed: [(IpAddr, u32); 2] =
            [("192.0.2.0".parse()?, 24), ("2001:db8:1::".parse()?, 64)];
        for (place, Parts { client, port, there, .. }) in FAMILIES.into_iter().enumerate() {
            for (index, protocol) in [(1, TCP), (2, UDP)] {
                let row = [(at(there), Locality::Zone)];
                programs.expose(index, at(port), protocol, &row)?;
            }
            // Half-open, both of them.
            let (syn, datagram) = (tcp(client, port, Tcp::Syn(999)), udp(client, port));
            on_uplink(programs, "before", &syn, BACK)?;
            on_uplink(programs, "before", &datagram, BACK)?;
            for protocol in [TCP, UDP] {
                programs.allow_only(at(port), protocol, allowed[place])?;
            }
            on_uplink(programs, "is open", &syn, BACK)?;
            on_uplink(programs, "is open", &datagram, BACK)?;
            let other = SocketAddr::new(at(client).ip(), at(client).port() + 1).to_string();
            let mut denied = [tcp(&other, port, Tcp::Syn(1)), udp(&other, port)];
            for packet in &denied {
                let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, packet)?;
                ensure!(verdict == DROP, "verdict {verdict}");
            }
            // No SYN: perhaps it is an answer to a connection of this node.
            let stray = tcp(&other, port, Tcp::Ack);
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &stray)?;
            ensure!(verdict == NEXT, "verdict {verdict}");
            // Of a process of this node, which has asked from that port.
            let asked = SocketAddr::new(at(client).ip(), 53).to_string();
            programs.run_on(UPLINK, Hook::ExternalEgress, &udp(port, &asked))?;
            let answer = udp(&asked, port);
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, &answer)?;
            ensure!(verdict == NEXT, "verdict {verdict} on an answer");
            for packet in &mut denied {
                packet[5] ^= 1;
                let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, packet)?;
                ensure!(verdict == NEXT, "verdict {verdict} on a frame for another host");
            }
        }
        let by_xdp = programs.done_by_xdp()?;
        // The datagrams of what was half-open before.
        let wanted = Packets { denied: 4, translated: 2, ..Packets::default() };
        ensure!(kernel() < (5, 14) || by_xdp == wanted, "{by_xdp:?} by XDP");
        let totals = programs.totals(Hook::ExternalIngress)?;
        ensure!(totals.denied == 4, "XDP and tc do not count the same: {totals:?}");
        programs.stop_giving_sources()?;
        let Parts { client, port, .. } = FAMILIES[0];
        let other = SocketAddr::new(at(client).ip(), 999).to_string();
        let (verdict, _) =
            programs.run_on(UPLINK, Hook::ExternalIngress, &tcp(&other, port, Tcp::Syn(1)))?;
        ensure!(verdict == DROP && programs.done_by_xdp()? == by_xdp, "XDP is to do nothing");
        Ok(())
    })
}

#[test]
fn xdp_sends_on_datagrams_that_nobody_answers_and_tc_sees_the_first_answer_and_the_next_one()
-> Result<()> {
    on_node(|programs| {
        for Parts { client, port, there, .. } in FAMILIES {
            programs.expose(2, at(port), UDP, &[(at(there), Locality::Zone)])?;
            let (datagram, mut by_xdp) = (udp(client, port), programs.done_by_xdp()?.translated);
            let mut expect = |programs: &mut Programs,
                              what: &str,
                              packet: &[u8],
                              more|
             -> Result<_> {
                let (from, to, _) = on_uplink(programs, what, packet, BACK)?;
                let now = programs.done_by_xdp()?.translated;
                ensure!(kernel() < (5, 14) || now - by_xdp == more, "{what}: {now} after {by_xdp}");
                by_xdp = now;
                Ok((from, to))
            };
            let (source, _) = expect(programs, "it opens", &datagram, 0)?;
            for _ in 0..3 {
                let again = expect(programs, "nobody has answered", &datagram, 1)?;
                ensure!(again == (source, at(there)), "{again:?} after {source}");
            }
            let answer = frame::udp(at(there), source, b"I");
            let answered = expect(programs, "the first answer", &answer, 0)?;
            ensure!(answered == (at(port), at(client)), "{answered:?}");
            expect(programs, "it is established", &datagram, 0)?;
            expect(programs, "it was established", &datagram, 1)?;
            expect(programs, "another answer", &answer, 1)?;
        }
        Ok(())
    })
}

/// A client's packet that opens a connection, from this port of it.
fn opening(client: &str, client_port: u16, port: &str, protocol: u8) -> Vec<u8> {
    let client = SocketAddr::new(at(client).ip(), client_port).to_string();
    if protocol == TCP { tcp(&client, port, Tcp::Syn(1)) } else { udp(&client, port) }
}

#[test]
fn xdp_drops_what_a_client_has_too_many_of_and_no_table_has_room_for() -> Result<()> {
    /// A second frontend, without an endpoint.
    const EMPTY: u16 = 30_081;
    on_node(|programs| {
        let mut wanted = Packets::default();
        let dropped = |programs: &mut Programs, what: &str, packet: &[u8]| {
            let (verdict, _) = programs.run_on(UPLINK, Hook::ExternalIngress, packet)?;
            ensure!(verdict == DROP, "{what}: verdict {verdict}");
            Ok(())
        };
        for parts in &FAMILIES {
            let Parts { client, port, there, .. } = *parts;
            let empty = SocketAddr::new(at(port).ip(), EMPTY);
            for (index, protocol) in [(1, TCP), (2, UDP)] {
                programs.expose(index, at(port), protocol, &[(at(there), Locality::Zone)])?;
                programs.expose(index + 2, empty, protocol, &[])?;
            }
            let open = establish(programs, parts, 40_000, TCP)?;
            let half_open = opening(client, 40_001, port, TCP);
            on_uplink(programs, "before the limit", &half_open, BACK)?;
            programs.limit(1)?;
            dropped(programs, "a second one", &opening(client, 40_002, port, TCP))?;
            wanted.limited += 1;
            on_uplink(programs, "its first one", &open[0], BACK)?;
            on_uplink(programs, "is half-open already", &half_open, BACK)?;
            // A frontend without an endpoint answers, and datagrams stay half-open.
            let refused = opening(client, 40_003, &empty.to_string(), TCP);
            on_uplink(programs, "no endpoint", &refused, BACK)?;
            on_uplink(programs, "datagram", &opening(client, 40_004, port, UDP), BACK)?;
            programs.let_the_quota_end()?;
            on_uplink(programs, "no agent", &opening(client, 40_005, port, TCP), BACK)?;

            programs.limit(u32::MAX)?;
            for port in 40_006..40_009 {
                establish(programs, parts, port, TCP)?;
            }
            // Four shares of one connection are open.
            programs.limit(1)?;
            for (port_of_client, protocol) in [(40_010, TCP), (40_011, UDP)] {
                let packet = opening(client, port_of_client, port, protocol);
                dropped(programs, "the table is full", &packet)?;
                wanted.table_full += 1;
            }
            programs.limit(u32::MAX)?;
        }
        let mut by_xdp = programs.done_by_xdp()?;
        by_xdp.translated = 0;
        ensure!(kernel() < (5, 14) || by_xdp == wanted, "{by_xdp:?} by XDP, not {wanted:?}");
        let Packets { limited, table_full, .. } = programs.totals(Hook::ExternalIngress)?;
        let by_tc = Packets { limited, table_full, ..Packets::default() };
        ensure!(by_tc == wanted, "XDP and tc do not count the same: {by_tc:?}");
        Ok(())
    })
}

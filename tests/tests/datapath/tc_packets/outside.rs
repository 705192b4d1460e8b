//! Clients outside of the node: node ports and load balancer IPs.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::backend::Locality;
use topo_lb_common::connection::OUTSIDE_DEVICE;
use topo_lb_tests::frame::{self, Tcp, VM_MAC};
use topo_lb_tests::packets::{BACK, DROP, Hook, LOOPBACK, MARK, NEXT, Programs};

use super::fragments::fragments;
use super::scene::{
    A4, A6, B4, B6, CLIENT4, CLIENT6, WEB4, at, expect, expect_untouched, tcp, udp,
};

const OUTSIDE4: &str = "203.0.113.9:40000";
const OUTSIDE6: &str = "[2001:db8::9]:40000";
const PORT4: &str = "172.18.0.2:30080";
const PORT6: &str = "[fd00:18::2]:30080";

/// A client, a frontend, an endpoint of this node, and one of another.
type Parts = [&'static str; 4];

const FAMILIES: [Parts; 2] = [[OUTSIDE4, PORT4, A4, B4], [OUTSIDE6, PORT6, A6, B6]];

fn here(endpoint: &str) -> [(SocketAddr, Locality); 1] {
    [(at(endpoint), Locality::Node)]
}

fn elsewhere(endpoint: &str) -> [(SocketAddr, Locality); 1] {
    [(at(endpoint), Locality::Zone)]
}

/// Runs a packet of a client outside; checks its verdict, its addresses and its mark.
fn from_outside(
    programs: &mut Programs,
    what: &str,
    packet: &[u8],
    (verdict, from, to): (i32, &str, &str),
    wanted: u32,
) -> Result<()> {
    let (got, out, mark) = programs.run_marked(LOOPBACK, Hook::ExternalIngress, packet)?;
    let said = frame::says(&out).with_context(|| what.to_owned())?;
    ensure!(
        (got, said, mark) == (verdict, (at(from), at(to)), wanted),
        "{what}: verdict {got}, {said:?}, mark {mark:#x}"
    );
    let wrong = frame::wrong_checksums(&out)?;
    ensure!(wrong.is_empty(), "{what}: wrong checksums: {wrong:?}");
    Ok(())
}

#[test]
fn only_packets_to_another_node_are_marked_and_replies_have_the_frontend() -> Result<()> {
    for [client, port, a, b] in FAMILIES {
        for (endpoint, row, mark) in [(a, here(a), 0), (b, elsewhere(b), MARK)] {
            let mut programs = Programs::replacing()?;
            for (index, protocol) in [(1, TCP), (2, UDP)] {
                programs.expose(index, at(port), protocol, &row)?;
            }
            let egress = Hook::ExternalEgress;
            let there = (NEXT, client, endpoint);
            let back = (NEXT, port, client);
            let syn = tcp(client, port, Tcp::Syn(999));
            from_outside(&mut programs, "SYN", &syn, there, mark)?;
            let syn_ack = tcp(endpoint, client, Tcp::SynAck);
            expect(&mut programs, "SYN-ACK", egress, &syn_ack, back)?;
            let ack = tcp(client, port, Tcp::Bare);
            from_outside(&mut programs, "ACK", &ack, there, mark)?;
            let data = tcp(client, port, Tcp::Ack);
            from_outside(&mut programs, "data", &data, there, mark)?;
            let answer = tcp(endpoint, client, Tcp::Ack);
            let (_, _, mark_back) = programs.run_marked(LOOPBACK, egress, &answer)?;
            ensure!(mark_back == 0, "a reply has the mark {mark_back:#x}");
            expect(&mut programs, "answer", egress, &answer, back)?;
            from_outside(&mut programs, "datagram", &udp(client, port), there, mark)?;
            expect(&mut programs, "its answer", egress, &udp(endpoint, client), back)?;
        }
    }
    Ok(())
}

#[test]
fn later_fragments_have_the_mark_of_the_first() -> Result<()> {
    let mut programs = Programs::replacing()?;
    programs.expose(1, at(PORT4), UDP, &elsewhere(B4))?;
    for (number, fragment) in fragments(OUTSIDE4, PORT4, 1400).iter().enumerate() {
        let (verdict, out, mark) =
            programs.run_marked(LOOPBACK, Hook::ExternalIngress, fragment)?;
        ensure!(
            verdict == NEXT && out[30..34] == [10, 244, 2, 2] && mark == MARK,
            "fragment {number}: verdict {verdict}, mark {mark:#x}, {out:02x?}"
        );
    }
    Ok(())
}

#[test]
fn a_reply_may_leave_by_another_device() -> Result<()> {
    let mut programs = Programs::replacing()?;
    programs.expose(1, at(PORT4), TCP, &here(A4))?;
    let syn = tcp(OUTSIDE4, PORT4, Tcp::Syn(999));
    from_outside(&mut programs, "SYN", &syn, (NEXT, OUTSIDE4, A4), 0)?;
    let keys = programs.connections4()?;
    ensure!(keys.len() == 2, "{keys:?}");
    ensure!(keys.iter().all(|(key, _)| key.device == OUTSIDE_DEVICE), "{keys:?}");
    Ok(())
}

#[test]
fn clients_outside_use_their_own_record_and_guests_never_do() -> Result<()> {
    for ([outside, port, a, b], guest) in FAMILIES.into_iter().zip([CLIENT4, CLIENT6]) {
        let mut programs = Programs::replacing()?;
        programs.expose(1, at(port), TCP, &elsewhere(b))?;
        let syn = tcp(outside, port, Tcp::Syn(1));
        from_outside(&mut programs, "the plain one", &syn, (NEXT, outside, b), MARK)?;
        let mut programs = Programs::replacing()?;
        programs.expose(1, at(port), TCP, &elsewhere(b))?;
        programs.expose_outside(1, at(port), TCP, &here(a))?;
        from_outside(&mut programs, "its own", &syn, (NEXT, outside, a), 0)?;
        let from_guest = tcp(guest, port, Tcp::Syn(1));
        expect(&mut programs, "a guest", Hook::Ingress, &from_guest, (NEXT, guest, b))?;
    }
    Ok(())
}

#[test]
fn without_an_endpoint_here_clients_outside_get_no_answer() -> Result<()> {
    for [outside, port, _, b] in FAMILIES {
        let mut programs = Programs::replacing()?;
        for (index, protocol) in [(1, TCP), (2, UDP)] {
            programs.expose(index, at(port), protocol, &elsewhere(b))?;
            programs.expose_outside(index, at(port), protocol, &[])?;
        }
        for packet in &[tcp(outside, port, Tcp::Syn(1)), udp(outside, port)] {
            let (verdict, _) = programs.run(Hook::ExternalIngress, packet)?;
            ensure!(verdict == DROP, "verdict {verdict}");
        }
        // Perhaps an answer to a connection of this node.
        let stray = tcp(outside, port, Tcp::Ack);
        let (verdict, same) = programs.run(Hook::ExternalIngress, &stray)?;
        ensure!(verdict == NEXT && same == stray, "verdict {verdict}");
        let totals = programs.totals(Hook::ExternalIngress)?;
        ensure!((totals.denied, totals.refused, totals.unknown) == (2, 0, 1), "{totals:?}");
    }
    Ok(())
}

#[test]
fn a_frontend_without_any_endpoint_is_refused() -> Result<()> {
    for [outside, port, ..] in FAMILIES {
        let mut programs = Programs::replacing()?;
        programs.expose(1, at(port), TCP, &[])?;
        let syn = tcp(outside, port, Tcp::Syn(1));
        from_outside(&mut programs, "SYN", &syn, (BACK, port, outside), 0)?;
        ensure!(programs.totals(Hook::ExternalIngress)?.refused == 1);
    }
    Ok(())
}

#[test]
fn a_frame_for_another_host_or_for_many_is_left_alone() -> Result<()> {
    for [client, port, a, b] in FAMILIES {
        let mut programs = Programs::replacing()?;
        programs.rely_on_marks(true)?;
        let rows: [&[_]; 3] = [&here(a), &elsewhere(b), &[]];
        for destination in [VM_MAC, [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            let addressed = |mut packet: Vec<u8>| {
                packet[..6].copy_from_slice(&destination);
                packet
            };
            for row in rows {
                for (index, protocol) in [(1, TCP), (2, UDP)] {
                    programs.expose(index, at(port), protocol, row)?;
                }
                for packet in [
                    tcp(client, port, Tcp::Syn(999)),
                    tcp(client, port, Tcp::Ack),
                    udp(client, port),
                ] {
                    let ingress = Hook::ExternalIngress;
                    expect_untouched(&mut programs, "flooded", ingress, &addressed(packet))?;
                }
            }
            let left = (programs.connections4()?.len(), programs.connections6()?.len());
            ensure!(left == (0, 0), "{left:?} entries after frames to {destination:02x?}");
        }
        // Nor does one end a connection of this node.
        programs.expose(2, at(port), UDP, &here(a))?;
        from_outside(&mut programs, "asks", &udp(client, port), (NEXT, client, a), 0)?;
        let mut direct = udp(client, a);
        direct[..6].copy_from_slice(&VM_MAC);
        expect_untouched(&mut programs, "flooded", Hook::ExternalIngress, &direct)?;
        let answer = udp(a, client);
        expect(&mut programs, "answer", Hook::ExternalEgress, &answer, (NEXT, port, client))?;
    }
    Ok(())
}

#[test]
fn source_ranges_hold_for_openings_from_outside() -> Result<()> {
    let ranges: [(IpAddr, u32); 2] = [("203.0.113.0".parse()?, 28), ("2001:db8::".parse()?, 64)];
    let strangers = ["203.0.113.16:40000", "[2001:db8:0:1::9]:40000"];
    for (place, [allowed, port, a, _]) in FAMILIES.into_iter().enumerate() {
        let (stranger, guest) = (strangers[place], [CLIENT4, CLIENT6][place]);
        let mut programs = Programs::replacing()?;
        programs.expose(1, at(port), TCP, &here(a))?;
        let syn = |from| tcp(from, port, Tcp::Syn(1));
        from_outside(&mut programs, "before", &syn(stranger), (NEXT, stranger, a), 0)?;
        programs.allow_only(at(port), TCP, ranges[place])?;
        from_outside(&mut programs, "allowed", &syn(allowed), (NEXT, allowed, a), 0)?;
        expect(&mut programs, "a guest", Hook::Ingress, &syn(guest), (NEXT, guest, a))?;
        // What is open goes on.
        from_outside(&mut programs, "open", &syn(stranger), (NEXT, stranger, a), 0)?;
        let other = SocketAddr::new(at(stranger).ip(), 40_001).to_string();
        let (verdict, _) = programs.run(Hook::ExternalIngress, &tcp(&other, port, Tcp::Syn(1)))?;
        ensure!(verdict == DROP, "verdict {verdict} for {other}");
        ensure!(programs.totals(Hook::ExternalIngress)?.denied == 1);
    }
    Ok(())
}

#[test]
fn a_flood_of_one_client_does_not_stop_another() -> Result<()> {
    for ([outside, port, a, _], other) in
        FAMILIES.into_iter().zip(["203.0.113.77:40000", "[2001:db8:0:1::77]:40000"])
    {
        let mut programs = Programs::replacing()?;
        programs.expose(1, at(port), TCP, &here(a))?;
        // An agent counts.
        programs.limit(1 << 20)?;
        let flood = |programs: &mut Programs, first: u16| {
            (0..10_000).try_for_each(|number| {
                let from = SocketAddr::new(at(outside).ip(), first + number).to_string();
                let syn = tcp(&from, port, Tcp::Syn(1));
                programs.run(Hook::ExternalIngress, &syn).map(drop)
            })
        };
        flood(&mut programs, 1_000)?;
        let syn = tcp(other, port, Tcp::Syn(999));
        from_outside(&mut programs, "another", &syn, (NEXT, other, a), 0)?;
        flood(&mut programs, 20_000)?;
        // It completes its handshake.
        let back = (NEXT, port, other);
        let syn_ack = tcp(a, other, Tcp::SynAck);
        expect(&mut programs, "SYN-ACK", Hook::ExternalEgress, &syn_ack, back)?;
        let ack = tcp(other, port, Tcp::Bare);
        from_outside(&mut programs, "ACK", &ack, (NEXT, other, a), 0)?;
    }
    Ok(())
}

#[test]
fn a_client_of_another_node_that_is_its_own_endpoint_is_masqueraded() -> Result<()> {
    let mut programs = Programs::replacing()?;
    programs.expose(1, at(PORT4), TCP, &elsewhere(B4))?;
    let client = SocketAddr::new(at(B4).ip(), 40_000).to_string();
    let syn = tcp(&client, PORT4, Tcp::Syn(1));
    from_outside(&mut programs, "SYN", &syn, (NEXT, &client, B4), MARK)
}

#[test]
fn other_ports_and_addresses_and_the_loopback_are_untouched() -> Result<()> {
    let mut programs = Programs::replacing()?;
    programs.expose(1, at(PORT4), TCP, &here(A4))?;
    programs.expose(2, at("127.0.0.1:30080"), TCP, &here(A4))?;
    let table = [
        ("another port", tcp(OUTSIDE4, "172.18.0.2:30081", Tcp::Syn(1))),
        ("another address", tcp(OUTSIDE4, "172.18.0.3:30080", Tcp::Syn(1))),
        ("another protocol", udp(OUTSIDE4, PORT4)),
        ("the loopback", tcp(OUTSIDE4, "127.0.0.1:30080", Tcp::Syn(1))),
        ("a ClusterIP that is no frontend", tcp(OUTSIDE4, WEB4, Tcp::Syn(1))),
    ];
    for (what, packet) in table {
        for hook in [Hook::ExternalIngress, Hook::Ingress] {
            expect_untouched(&mut programs, what, hook, &packet)?;
        }
    }
    ensure!(programs.connections4()?.is_empty());
    Ok(())
}

#[test]
fn a_guest_and_a_client_outside_with_the_same_ports_have_connections_of_their_own() -> Result<()> {
    let mut programs = Programs::replacing()?;
    programs.expose(1, at(PORT4), TCP, &elsewhere(B4))?;
    programs.expose_outside(1, at(PORT4), TCP, &here(A4))?;
    let syn = tcp(CLIENT4, PORT4, Tcp::Syn(7));
    expect(&mut programs, "a guest", Hook::Ingress, &syn, (NEXT, CLIENT4, B4))?;
    from_outside(&mut programs, "outside", &syn, (NEXT, CLIENT4, A4), 0)?;
    expect(&mut programs, "the guest again", Hook::Ingress, &syn, (NEXT, CLIENT4, B4))?;
    Ok(())
}

/// The kernel drops such packets; the answer of an endpoint would go to all hosts of the network.
#[test]
fn a_source_that_is_no_unicast_address_opens_nothing() -> Result<()> {
    for (web, endpoint, sources) in [
        (
            "172.18.0.2:30080",
            A4,
            &["224.0.0.1:7", "255.255.255.255:7", "127.0.0.1:7", "0.0.0.0:7"][..],
        ),
        ("[fd00:18::2]:30080", A6, &["[ff02::1]:7", "[::]:7"]),
    ] {
        let mut programs = Programs::replacing()?;
        programs.expose(1, at(web), TCP, &[(at(endpoint), Locality::Zone)])?;
        programs.expose(2, at(web), UDP, &[(at(endpoint), Locality::Zone)])?;
        for source in sources {
            for packet in [tcp(source, web, Tcp::Syn(999)), udp(source, web)] {
                expect_untouched(&mut programs, source, Hook::ExternalIngress, &packet)?;
            }
        }
        ensure!(programs.totals(Hook::ExternalIngress)?.opened == 0);
    }
    Ok(())
}

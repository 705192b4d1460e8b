//! Packets that are translated, and packets that are left untouched.

use anyhow::{Result, ensure};
use etherparse::PacketBuilder;
use topo_lb_tests::frame::{NODE_MAC, Tcp, VM_MAC, ip};
use topo_lb_tests::packets::{Hook, NEXT};

use super::scene::{
    A4, A6, CLIENT4, CLIENT6, EMPTY4, WEB4, WEB6, at, expect, expect_untouched, scene, tcp, udp,
};

#[test]
fn a_connection_is_translated_each_way() -> Result<()> {
    let mut programs = scene()?;
    let families = [(CLIENT4, WEB4, A4), (CLIENT6, WEB6, A6)];
    for (client, web, a) in families {
        let table = [
            ("SYN", Hook::Ingress, tcp(client, web, Tcp::Syn(7)), (NEXT, client, a)),
            ("SYN again", Hook::Ingress, tcp(client, web, Tcp::Syn(7)), (NEXT, client, a)),
            ("SYN-ACK", Hook::Egress, tcp(a, client, Tcp::SynAck), (NEXT, web, client)),
            ("data", Hook::Ingress, tcp(client, web, Tcp::Ack), (NEXT, client, a)),
            ("answer", Hook::Egress, tcp(a, client, Tcp::Ack), (NEXT, web, client)),
            ("FIN", Hook::Ingress, tcp(client, web, Tcp::Fin), (NEXT, client, a)),
            ("FIN back", Hook::Egress, tcp(a, client, Tcp::Fin), (NEXT, web, client)),
            ("last ACK", Hook::Ingress, tcp(client, web, Tcp::Ack), (NEXT, client, a)),
            ("datagram", Hook::Ingress, udp(client, web), (NEXT, client, a)),
            ("its answer", Hook::Egress, udp(a, client), (NEXT, web, client)),
        ];
        for (what, hook, packet, wanted) in table {
            expect(&mut programs, what, hook, &packet, wanted)?;
        }
    }
    let totals = programs.totals(Hook::Ingress)?;
    ensure!((totals.opened, totals.translated) == (4, 12), "{totals:?}");
    Ok(())
}

#[test]
fn what_is_not_of_a_service_is_untouched() -> Result<()> {
    let mut programs = scene()?;
    let table = [
        ("another port", Hook::Ingress, tcp(CLIENT4, "10.96.0.1:81", Tcp::Syn(1))),
        ("another address", Hook::Ingress, udp(CLIENT4, "10.96.0.9:80")),
        ("a pod itself", Hook::Ingress, tcp(CLIENT4, A4, Tcp::Syn(1))),
        ("a pod's answer to that", Hook::Egress, tcp(A4, CLIENT4, Tcp::SynAck)),
        ("an answer to what never was", Hook::Egress, udp(A4, CLIENT4)),
        ("an IPv6 one", Hook::Egress, tcp(A6, CLIENT6, Tcp::Ack)),
        ("the middle of an unknown connection", Hook::Ingress, tcp(CLIENT4, WEB4, Tcp::Ack)),
        ("a RST to a Service without endpoints", Hook::Ingress, tcp(CLIENT4, EMPTY4, Tcp::Rst)),
    ];
    for (what, hook, packet) in table {
        expect_untouched(&mut programs, what, hook, &packet)?;
    }
    let mut echo = Vec::new();
    PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
        .ip(ip(at(CLIENT4).ip(), at(WEB4).ip()))
        .icmpv4_echo_request(1, 1)
        .write(&mut echo, b"ping")?;
    expect_untouched(&mut programs, "a ping of a ClusterIP", Hook::Ingress, &echo)?;
    ensure!(programs.connections4()?.is_empty(), "{:?}", programs.connections4()?);
    ensure!(programs.totals(Hook::Ingress)?.unknown == 2, "{:?}", programs.totals(Hook::Ingress)?);
    Ok(())
}

#[test]
fn only_packets_of_endpoints_with_connections_are_looked_up() -> Result<()> {
    let mut programs = scene()?;
    let answer = tcp(A4, CLIENT4, Tcp::SynAck);
    let syn = tcp(CLIENT4, WEB4, Tcp::Syn(1));
    let translated = (NEXT, WEB4, CLIENT4);
    expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, CLIENT4, A4))?;
    expect(&mut programs, "marked", Hook::Egress, &answer, translated)?;
    programs.unmark(at(A4))?;
    expect_untouched(&mut programs, "no mark", Hook::Egress, &answer)?;
    // The mark does not matter until an agent has marked the endpoints of earlier connections.
    programs.rely_on_marks(false)?;
    expect(&mut programs, "before", Hook::Egress, &answer, translated)?;
    Ok(())
}

#[test]
fn the_next_test_finds_nothing_of_this_one() -> Result<()> {
    let families = [(CLIENT4, WEB4, A4), (CLIENT6, WEB6, A6)];
    for _ in 0..2 {
        let mut programs = scene()?;
        for (client, web, a) in families {
            let data = tcp(client, web, Tcp::Ack);
            expect_untouched(&mut programs, "no connection", Hook::Ingress, &data)?;
            let syn = tcp(client, web, Tcp::Syn(7));
            expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, client, a))?;
            let syn_ack = tcp(a, client, Tcp::SynAck);
            expect(&mut programs, "SYN-ACK", Hook::Egress, &syn_ack, (NEXT, web, client))?;
        }
        let totals = programs.totals(Hook::Ingress)?;
        ensure!((totals.unknown, totals.opened) == (2, 2), "{totals:?}");
    }
    Ok(())
}

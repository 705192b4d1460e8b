//! Replies for a Service without endpoints.

use anyhow::{Result, ensure};
use etherparse::{Icmpv4Type, Icmpv6Type, SlicedPacket, TransportSlice, icmpv4, icmpv6};
use topo_lb_common::address::TCP;
use topo_lb_tests::frame::{NODE_MAC, Tcp, VM_MAC};
use topo_lb_tests::packets::{BACK, DROP, Hook};

use super::scene::{CLIENT4, CLIENT6, EMPTY4, EMPTY6, WEB4, at, expect, scene, tcp, udp};

#[test]
fn a_service_without_endpoints_answers_a_syn_with_a_rst() -> Result<()> {
    let mut programs = scene()?;
    for (client, empty) in [(CLIENT4, EMPTY4), (CLIENT6, EMPTY6)] {
        let packet = tcp(client, empty, Tcp::Syn(41));
        let out = expect(&mut programs, "RST", Hook::Ingress, &packet, (BACK, empty, client))?;
        let sliced = SlicedPacket::from_ethernet(&out)?;
        let Some(TransportSlice::Tcp(rst)) = sliced.transport else { panic!("no TCP") };
        ensure!(rst.rst() && rst.ack() && !rst.syn(), "{rst:?}");
        ensure!((rst.sequence_number(), rst.acknowledgment_number()) == (0, 42), "{rst:?}");
        ensure!(out[..6] == VM_MAC && out[6..12] == NODE_MAC, "sent to {:x?}", &out[..12]);
    }
    Ok(())
}

#[test]
fn a_service_without_endpoints_answers_a_datagram_with_port_unreachable() -> Result<()> {
    let mut programs = scene()?;
    let packet = udp(CLIENT4, EMPTY4);
    let wanted = (BACK, "10.96.0.3:0", "10.244.1.9:0");
    let out = expect(&mut programs, "ICMP", Hook::Ingress, &packet, wanted)?;
    let sliced = SlicedPacket::from_ethernet(&out)?;
    let Some(TransportSlice::Icmpv4(icmp)) = sliced.transport else { panic!("no ICMP") };
    let port = icmpv4::DestUnreachableHeader::Port;
    ensure!(icmp.icmp_type() == Icmpv4Type::DestinationUnreachable(port), "{icmp:?}");
    ensure!(icmp.payload() == &packet[14..14 + 28], "quoted {:x?}", icmp.payload());
    let packet = udp(CLIENT6, EMPTY6);
    let wanted = (BACK, "[fd00:96::3]:0", "[fd00:244:1::9]:0");
    let out = expect(&mut programs, "ICMPv6", Hook::Ingress, &packet, wanted)?;
    let sliced = SlicedPacket::from_ethernet(&out)?;
    let Some(TransportSlice::Icmpv6(icmp)) = sliced.transport else { panic!("no ICMPv6") };
    let port = icmpv6::DestUnreachableCode::Port;
    ensure!(icmp.icmp_type() == Icmpv6Type::DestinationUnreachable(port), "{icmp:?}");
    ensure!(icmp.payload() == &packet[14..14 + 48], "quoted {:x?}", icmp.payload());
    Ok(())
}

#[test]
fn a_record_that_is_never_the_frontends_refuses_and_is_counted() -> Result<()> {
    let mut programs = scene()?;
    programs.tear(at(WEB4), TCP)?;
    let packet = tcp(CLIENT4, WEB4, Tcp::Syn(41));
    expect(&mut programs, "RST", Hook::Ingress, &packet, (BACK, WEB4, CLIENT4))?;
    ensure!(programs.torn()? == 1, "{}", programs.torn()?);
    Ok(())
}

#[test]
fn refusals_are_limited() -> Result<()> {
    let mut programs = scene()?;
    let mut answered = 0;
    for number in 0..2_000 {
        let (verdict, _) = programs.run(Hook::Ingress, &tcp(CLIENT4, EMPTY4, Tcp::Syn(number)))?;
        ensure!(verdict == BACK || verdict == DROP, "verdict {verdict}");
        answered += u64::from(verdict == BACK);
    }
    let totals = programs.totals(Hook::Ingress)?;
    ensure!(totals.refused == answered && totals.unanswered == 2_000 - answered, "{totals:?}");
    ensure!((500..2_000).contains(&answered), "{answered} answered at once");
    Ok(())
}

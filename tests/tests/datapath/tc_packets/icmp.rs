//! ICMP errors about translated packets.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use etherparse::{Icmpv4Type, Icmpv6Type, Ipv4Header, PacketBuilder, icmpv4};
use topo_lb_tests::frame::{NODE_MAC, Tcp, VM_MAC, ip, says, wrong_checksums};
use topo_lb_tests::packets::{Hook, NEXT};

use super::scene::{
    A4, A6, CLIENT4, CLIENT6, WEB4, WEB6, at, expect, expect_untouched, scene, tcp, udp,
};

/// An ICMP error to the client, or by the client, that quotes a packet.
fn error4(from: &str, to: &str, kind: Icmpv4Type, quoted: &[u8]) -> Result<Vec<u8>> {
    let mut error = Vec::new();
    let (sender, receiver) = if to == WEB4 { (VM_MAC, NODE_MAC) } else { (NODE_MAC, VM_MAC) };
    PacketBuilder::ethernet2(sender, receiver)
        .ip(ip(at(from).ip(), at(to).ip()))
        .icmpv4(kind)
        .write(&mut error, quoted)?;
    Ok(error)
}

const UNREACHABLE: Icmpv4Type =
    Icmpv4Type::DestinationUnreachable(icmpv4::DestUnreachableHeader::Port);

#[test]
fn an_icmp_error_is_told_in_the_client_s_words() -> Result<()> {
    let mut programs = scene()?;
    let opened =
        expect(&mut programs, "opens", Hook::Ingress, &udp(CLIENT4, WEB4), (NEXT, CLIENT4, A4))?;
    // A router in between, and the endpoint.
    for teller in ["192.0.2.1:0", "10.244.1.3:0"] {
        let next_hop_mtu = 1280;
        let too_big = icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu };
        let too_big = Icmpv4Type::DestinationUnreachable(too_big);
        let error = error4(teller, CLIENT4, too_big, &opened[14..])?;
        let wanted = (NEXT, "10.96.0.1:0", "10.244.1.9:0");
        let out = expect(&mut programs, teller, Hook::Egress, &error, wanted)?;
        // The quoted packet, in a new Ethernet frame, is the packet that the client sent.
        let mut quoted = opened[..14].to_vec();
        quoted.extend_from_slice(&out[14 + 28..]);
        ensure!(says(&quoted)? == (at(CLIENT4), at(WEB4)), "{:?}", says(&quoted)?);
        ensure!(wrong_checksums(&quoted)?.is_empty(), "{:?}", wrong_checksums(&quoted)?);
        ensure!(quoted[14..] == udp(CLIENT4, WEB4)[14..], "{quoted:02x?}");
    }
    // The client's error about a reply reaches the endpoint with the endpoint's own addresses.
    let answer = udp(A4, CLIENT4);
    let answer = expect(&mut programs, "answer", Hook::Egress, &answer, (NEXT, WEB4, CLIENT4))?;
    // So does one of a router, whose address stays: the answers to it have the client's own one.
    for teller in ["10.244.1.9:0", "192.0.2.1:0"] {
        let error = error4(teller, WEB4, UNREACHABLE, &answer[14..14 + 28])?;
        let wanted = (NEXT, teller, "10.244.1.3:0");
        let out = expect(&mut programs, "client's error", Hook::Ingress, &error, wanted)?;
        let (inner, rest) = Ipv4Header::from_slice(&out[42..])?;
        ensure!(IpAddr::from(inner.source) == at(A4).ip(), "{inner:?}");
        ensure!(inner.header_checksum == inner.calc_header_checksum(), "{inner:?}");
        ensure!(rest[..2] == 9376_u16.to_be_bytes(), "{rest:02x?}");
    }
    Ok(())
}

#[test]
fn an_icmp_error_may_quote_no_more_than_ports_and_what_is_behind_it_is_nothing() -> Result<()> {
    let mut programs = scene()?;
    let syn = tcp(CLIENT4, WEB4, Tcp::Syn(1));
    let opened = expect(&mut programs, "SYN", Hook::Ingress, &syn, (NEXT, CLIENT4, A4))?;
    // Quotes: the headers, then the minimum of RFC 792, then less.
    for (quoted, told) in [(40, true), (28, true), (24, true), (23, false), (20, false), (8, false)]
    {
        for trailer in [0, 40] {
            let what = format!("{quoted} bytes quoted, {trailer} behind");
            let quote = &opened[14..14 + quoted];
            let mut error = error4("192.0.2.1:0", CLIENT4, UNREACHABLE, quote)?;
            let end = error.len();
            error.resize(end + trailer, 0xab);
            if !told {
                expect_untouched(&mut programs, &what, Hook::Egress, &error)?;
                continue;
            }
            let wanted = (NEXT, "10.96.0.1:0", "10.244.1.9:0");
            let out = expect(&mut programs, &what, Hook::Egress, &error, wanted)?;
            ensure!(out[42..end] == syn[14..14 + quoted], "{what}: {:02x?}", &out[42..]);
            ensure!(out[end..] == error[end..], "{what}: {:02x?}", &out[end..]);
        }
    }
    Ok(())
}

#[test]
fn an_icmp_error_about_what_is_over_is_untouched() -> Result<()> {
    let mut programs = scene()?;
    let asked = udp(CLIENT4, WEB4);
    let opened = expect(&mut programs, "asks", Hook::Ingress, &asked, (NEXT, CLIENT4, A4))?;
    programs.age(Duration::from_secs(40))?;
    let error = error4(A4, CLIENT4, UNREACHABLE, &opened[14..])?;
    // The client may have contacted the endpoint directly from the same port meanwhile.
    expect_untouched(&mut programs, "late", Hook::Egress, &error)
}

#[test]
fn an_icmpv6_error_is_told_in_the_client_s_words() -> Result<()> {
    let mut programs = scene()?;
    let opened =
        expect(&mut programs, "opens", Hook::Ingress, &udp(CLIENT6, WEB6), (NEXT, CLIENT6, A6))?;
    for teller in ["[fd00::1]:0", "[fd00:244:1::3]:0"] {
        let mut error = Vec::new();
        PacketBuilder::ethernet2(NODE_MAC, VM_MAC)
            .ip(ip(at(teller).ip(), at(CLIENT6).ip()))
            .icmpv6(Icmpv6Type::PacketTooBig { mtu: 1280 })
            .write(&mut error, &opened[14..])?;
        let wanted = (NEXT, "[fd00:96::1]:0", "[fd00:244:1::9]:0");
        let out = expect(&mut programs, teller, Hook::Egress, &error, wanted)?;
        ensure!(out[14 + 48..] == udp(CLIENT6, WEB6)[14..], "{out:02x?}");
    }
    Ok(())
}

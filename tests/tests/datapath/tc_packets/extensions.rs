//! Options of IPv4 and extension headers of IPv6.

use anyhow::Result;
use etherparse::{IpHeaders, Ipv4Options, PacketBuilder};
use topo_lb_tests::frame::{NODE_MAC, VM_MAC, ip};
use topo_lb_tests::packets::{Hook, NEXT};

use super::scene::{A4, A6, CLIENT4, CLIENT6, WEB4, WEB6, at, expect, scene, udp};

#[test]
fn ip_options_to_the_limit_are_passed_over() -> Result<()> {
    let mut programs = scene()?;
    for words in [1, 5, 10] {
        let IpHeaders::Ipv4(mut header, extensions) = ip(at(CLIENT4).ip(), at(WEB4).ip()) else {
            panic!("IPv4")
        };
        header.options = Ipv4Options::try_from(vec![1; words * 4].as_slice())?;
        let mut packet = Vec::new();
        PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
            .ip(IpHeaders::Ipv4(header, extensions))
            .udp(40_000, 80)
            .write(&mut packet, b"who?")?;
        let what = format!("{words} words of options");
        expect(&mut programs, &what, Hook::Ingress, &packet, (NEXT, CLIENT4, A4))?;
    }
    Ok(())
}

#[test]
fn ipv6_extension_headers_are_passed_over() -> Result<()> {
    let mut programs = scene()?;
    let plain = udp(CLIENT6, WEB6);
    // Hop-by-hop options, then destination options, both only padding.
    let mut packet = plain[..54].to_vec();
    packet[20] = 0;
    packet.extend_from_slice(&[60, 0, 1, 4, 0, 0, 0, 0]);
    packet.extend_from_slice(&[17, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    packet.extend_from_slice(&plain[54..]);
    let length = (packet.len() - 54) as u16;
    packet[18..20].copy_from_slice(&length.to_be_bytes());
    expect(&mut programs, "extensions", Hook::Ingress, &packet, (NEXT, CLIENT6, A6))?;
    Ok(())
}

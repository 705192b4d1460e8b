//! Checksums that are wrong, missing, or become zero.

use anyhow::{Result, ensure};
use topo_lb_tests::frame::{says, wrong_checksums};
use topo_lb_tests::packets::{Hook, NEXT};

use super::scene::{A4, A6, CLIENT4, CLIENT6, WEB4, WEB6, at, scene, udp};

#[test]
fn a_wrong_checksum_stays_wrong() -> Result<()> {
    let mut programs = scene()?;
    for (client, web, place, name) in
        [(CLIENT4, WEB4, 24, "IPv4"), (CLIENT4, WEB4, 40, "UDP"), (CLIENT6, WEB6, 60, "UDP")]
    {
        let mut packet = udp(client, web);
        packet[place] ^= 0x55;
        ensure!(wrong_checksums(&packet)? == [name]);
        let (verdict, out) = programs.run(Hook::Ingress, &packet)?;
        ensure!(verdict == NEXT, "{name}: verdict {verdict}");
        ensure!(wrong_checksums(&out)? == [name], "{name}: {:?}", wrong_checksums(&out)?);
    }
    // A datagram without a checksum stays without one.
    let mut packet = udp(CLIENT4, WEB4);
    packet[40..42].fill(0);
    let (_, out) = programs.run(Hook::Ingress, &packet)?;
    ensure!(out[40..42] == [0, 0] && says(&out)?.1 == at(A4), "{out:02x?}");
    // Over IPv6, tunnels may omit the checksum (RFC 6935).
    let mut packet = udp(CLIENT6, WEB6);
    packet[60..62].fill(0);
    let (_, out) = programs.run(Hook::Ingress, &packet)?;
    ensure!(out[60..62] == [0, 0] && says(&out)?.1 == at(A6), "{out:02x?}");
    // A computed checksum of zero becomes 0xffff.
    for number in 0..=u16::MAX {
        let mut packet = udp(CLIENT4, WEB4);
        packet[42..44].copy_from_slice(&number.to_be_bytes());
        packet[40..42].fill(0);
        let (headers, payload) = {
            let sliced = etherparse::PacketHeaders::from_ethernet_slice(&packet)?;
            ((sliced.net, sliced.transport), sliced.payload.slice().to_vec())
        };
        let (Some(etherparse::NetHeaders::Ipv4(ip, _)), Some(transport)) = headers else {
            panic!("UDP over IPv4")
        };
        let checksum = transport.udp().expect("UDP").calc_checksum_ipv4(&ip, &payload)?;
        // The translation adds the difference of A's and the Service's address and port.
        packet[40..42].copy_from_slice(&checksum.to_be_bytes());
        let (_, out) = programs.run(Hook::Ingress, &packet)?;
        ensure!(out[40..42] != [0, 0], "{number}: a datagram lost its checksum");
        if out[40..42] == [0xff, 0xff] {
            ensure!(wrong_checksums(&out)?.is_empty(), "{number}: {:?}", wrong_checksums(&out)?);
            return Ok(());
        }
    }
    panic!("no payload made the checksum zero")
}

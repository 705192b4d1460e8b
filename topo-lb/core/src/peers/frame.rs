//! The frame around a message: an Ethernet header, IP without options, and UDP.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use etherparse::checksum::Sum16BitWords;
use etherparse::{
    EtherType, IpNumber, LinkSlice, NetSlice, PacketBuilder, SlicedPacket, TransportSlice,
    UdpHeader,
};

use topo_lb_common::hop::{PROBE_CLIENT4, PROBE_CLIENT6, PROBE_HOPS, PROBE_PORT};

use crate::cluster::Family;

/// The UDP port of both ends. No agent listens there: tc gives frames to it.
pub const PORT: u16 = PROBE_PORT;
/// Nobody forwards it. So it came straight from the node that sent it.
pub const HOP_LIMIT: u8 = PROBE_HOPS;

/// What is around a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The Ethernet address that sends it.
    pub from: [u8; 6],
    /// The Ethernet address to which it is sent.
    pub to: [u8; 6],
    /// The source address.
    pub source: IpAddr,
    /// The destination address, of the same family.
    pub destination: IpAddr,
}

/// In place of a client outside: an address of documentation, which no host has.
#[must_use]
pub const fn client(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::from_octets(PROBE_CLIENT4)),
        Family::V6 => IpAddr::V6(Ipv6Addr::from_octets(PROBE_CLIENT6)),
    }
}

impl Envelope {
    /// The frame; `None` if the addresses are of two families.
    #[must_use]
    pub fn write(&self, payload: &[u8]) -> Option<Vec<u8>> {
        let ethernet = PacketBuilder::ethernet2(self.from, self.to);
        let ip = match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                ethernet.ipv4(source.octets(), destination.octets(), HOP_LIMIT)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                ethernet.ipv6(source.octets(), destination.octets(), HOP_LIMIT)
            }
            _ => return None,
        };
        let udp = ip.udp(PORT, PORT);
        let mut frame = Vec::with_capacity(udp.size(payload.len()));
        udp.write(&mut frame, payload).ok()?;
        Some(frame)
    }

    /// Reads a frame that may be anything; `None` if it is none of an agent. Its checksums are right, it is no fragment,
    /// and nobody has forwarded it.
    #[must_use]
    pub fn read(frame: &[u8]) -> Option<(Self, &[u8])> {
        let packet = SlicedPacket::from_ethernet(frame).ok()?;
        let Some(LinkSlice::Ethernet2(ethernet)) = &packet.link else { return None };
        let Some(TransportSlice::Udp(udp)) = &packet.transport else { return None };
        let has_tag = !packet.link_exts.is_empty();
        if has_tag || udp.destination_port() != PORT || udp.source_port() != PORT {
            return None;
        }
        let header = UdpHeader { checksum: 0, ..udp.to_header() };
        let payload = udp.payload();
        let (source, destination, checksum): (IpAddr, IpAddr, _) = match &packet.net {
            Some(NetSlice::Ipv4(ip)) if ethernet.ether_type() == EtherType::IPV4 => {
                let ip = ip.header();
                let (source, destination) = (ip.source(), ip.destination());
                let is_whole = !ip.is_fragmenting_payload() && ip.protocol() == IpNumber::UDP;
                // Over the bytes: a parsed header lacks the reserved bit.
                let sum = Sum16BitWords::new().add_slice(ip.slice()).ones_complement();
                if !is_whole || ip.ttl() != HOP_LIMIT || sum != 0 {
                    return None;
                }
                let checksum = header.calc_checksum_ipv4_raw(source, destination, payload);
                (source.into(), destination.into(), checksum.ok()?)
            }
            Some(NetSlice::Ipv6(ip)) if ethernet.ether_type() == EtherType::IPV6 => {
                let ip = ip.header();
                // Zero would be a jumbogram's.
                let is_whole = usize::from(ip.payload_length()) == udp.slice().len();
                let is_udp = ip.next_header() == IpNumber::UDP;
                if !is_whole || !is_udp || ip.hop_limit() != HOP_LIMIT {
                    return None;
                }
                let checksum =
                    header.calc_checksum_ipv6_raw(ip.source(), ip.destination(), payload);
                (ip.source().into(), ip.destination().into(), checksum.ok()?)
            }
            _ => return None,
        };
        let (from, to) = (ethernet.source(), ethernet.destination());
        (checksum == udp.checksum()).then_some((Self { from, to, source, destination }, payload))
    }

    /// The family of its addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.source)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FROM: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const TO: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const PAYLOAD: &[u8] = b"an odd number of bytes.";

    fn envelope(family: Family) -> Envelope {
        let destination = match family {
            Family::V4 => "203.0.113.10",
            Family::V6 => "2001:db8:113::10",
        };
        let destination = destination.parse().expect("an address");
        Envelope { from: FROM, to: TO, source: client(family), destination }
    }

    fn frame(family: Family) -> Vec<u8> {
        envelope(family).write(PAYLOAD).expect("one family")
    }

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        for family in Family::BOTH {
            let frame = frame(family);
            assert_eq!(Envelope::read(&frame), Some((envelope(family), PAYLOAD)));
            // As short as an Ethernet frame may not be: cards append zeros.
            let padded = [&frame[..], &[0; 9]].concat();
            assert_eq!(Envelope::read(&padded), Some((envelope(family), PAYLOAD)));
        }
        let both = Envelope { destination: client(Family::V6), ..envelope(Family::V4) };
        assert_eq!(both.write(PAYLOAD), None);
    }

    #[test]
    fn a_frame_with_any_wrong_byte_is_none_or_says_the_same() {
        for family in Family::BOTH {
            let right = frame(family);
            for place in 12..right.len() {
                for value in (0..=u8::MAX).filter(|value| *value != right[place]) {
                    let mut wrong = right.clone();
                    wrong[place] = value;
                    // Traffic class and flow label of IPv6 are in no checksum, and mean nothing here.
                    let is_free = family == Family::V6 && (14..18).contains(&place);
                    let read = Envelope::read(&wrong);
                    assert!(
                        read.is_none() || is_free && read == Envelope::read(&right),
                        "{family} {value} at {place}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_cut_off_is_no_frame() {
        for family in Family::BOTH {
            let right = frame(family);
            for length in 0..right.len() {
                assert_eq!(Envelope::read(&right[..length]), None, "{family} {length}");
            }
        }
    }

    #[test]
    fn a_frame_that_was_forwarded_is_none() {
        let ip = PacketBuilder::ethernet2(FROM, TO).ipv4([192, 0, 2, 1], [203, 0, 113, 10], 2);
        let mut frame = Vec::new();
        ip.udp(PORT, PORT).write(&mut frame, PAYLOAD).expect("a vector takes everything");
        assert_eq!(Envelope::read(&frame), None);
    }

    #[test]
    fn a_frame_with_a_tag_of_a_vlan_is_none() {
        for family in Family::BOTH {
            let mut tagged = frame(family);
            tagged.splice(12..12, [0x81, 0, 0, 7]);
            assert_eq!(Envelope::read(&tagged), None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]
        #[test]
        fn any_bytes_are_read_without_a_panic(
            family in prop::sample::select(&Family::BOTH[..]),
            keep in 0_usize..80,
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = Envelope::read(&bytes);
            let right = frame(family);
            let _ = Envelope::read(&[&right[..keep.min(right.len())], &bytes].concat());
        }
    }
}

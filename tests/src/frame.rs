//! Ethernet frames with one packet each: made, and parsed independently of the programs.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result, bail};
use etherparse::{
    IpHeaders, IpNumber, Ipv4Header, Ipv6Header, NetHeaders, NetSlice, PacketBuilder,
    PacketHeaders, SlicedPacket, TcpHeader, TransportHeader, TransportSlice,
};

/// The sender of these frames.
pub const VM_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
/// Their destination.
pub const NODE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// The purpose of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// Opens a connection with this sequence number.
    Syn(u32),
    /// Answers a SYN.
    SynAck,
    /// Carries data, an odd number of bytes.
    Ack,
    /// Acknowledges without data.
    Bare,
    /// Closes this direction.
    Fin,
    /// Resets the connection.
    Rst,
}

/// A TCP segment.
///
/// # Panics
/// The addresses have different families.
#[must_use]
pub fn tcp(from: SocketAddr, to: SocketAddr, kind: Tcp) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(VM_MAC, NODE_MAC).ip(ip(from.ip(), to.ip()));
    let number = if let Tcp::Syn(number) = kind { number } else { 1000 };
    let tcp = ip.tcp(from.port(), to.port(), number, 64_000);
    let (tcp, payload): (_, &[u8]) = match kind {
        Tcp::Syn(_) => (tcp.syn(), b""),
        Tcp::SynAck => (tcp.syn().ack(1), b""),
        Tcp::Ack => (tcp.ack(77), b"an odd number of bytes."),
        Tcp::Bare => (tcp.ack(77), b""),
        Tcp::Fin => (tcp.fin().ack(77), b""),
        Tcp::Rst => (tcp.rst(), b""),
    };
    let mut packet = Vec::new();
    tcp.write(&mut packet, payload).expect("a vector takes everything");
    packet
}

/// A TCP segment with these flags, as in the header, and numbers.
///
/// # Panics
/// The addresses have different families.
#[must_use]
pub fn segment(
    (from, to): (SocketAddr, SocketAddr),
    flags: u8,
    sequence: u32,
    acknowledged: u32,
    payload: &[u8],
) -> Vec<u8> {
    let ip = PacketBuilder::ethernet2(VM_MAC, NODE_MAC).ip(ip(from.ip(), to.ip()));
    let mut header = TcpHeader::new(from.port(), to.port(), sequence, 64_000);
    header.acknowledgment_number = acknowledged;
    header.fin = flags & FIN != 0;
    header.syn = flags & SYN != 0;
    header.rst = flags & RST != 0;
    header.ack = flags & ACK != 0;
    let mut packet = Vec::new();
    ip.tcp_header(header).write(&mut packet, payload).expect("a vector takes everything");
    packet
}

/// FIN in TCP's flags.
pub const FIN: u8 = 1;
/// SYN in TCP's flags.
pub const SYN: u8 = 2;
/// RST in TCP's flags.
pub const RST: u8 = 4;
/// ACK in TCP's flags.
pub const ACK: u8 = 16;

/// A UDP datagram with this payload.
///
/// # Panics
/// The addresses have different families, or the payload is too long for a packet.
#[must_use]
pub fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let udp = PacketBuilder::ethernet2(VM_MAC, NODE_MAC)
        .ip(ip(from.ip(), to.ip()))
        .udp(from.port(), to.port());
    let mut packet = Vec::new();
    udp.write(&mut packet, payload).expect("a payload that fits");
    packet
}

/// An IP header without options or extensions; a packet builder completes it.
///
/// # Panics
/// The addresses have different families.
#[must_use]
pub fn ip(from: IpAddr, to: IpAddr) -> IpHeaders {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let header = Ipv4Header::new(0, 64, IpNumber(0), from.octets(), to.octets());
            IpHeaders::Ipv4(header.expect("an empty payload fits"), Default::default())
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            let header = Ipv6Header {
                source: from.octets(),
                destination: to.octets(),
                hop_limit: 64,
                ..Ipv6Header::default()
            };
            IpHeaders::Ipv6(header, Default::default())
        }
        _ => panic!("addresses of two families"),
    }
}

/// The source and destination of a packet; ports are zero if it has none.
///
/// # Errors
/// It is not an IP packet.
pub fn says(packet: &[u8]) -> Result<(SocketAddr, SocketAddr)> {
    let sliced = SlicedPacket::from_ethernet(packet)?;
    let (source, destination): (IpAddr, IpAddr) = match sliced.net.context("no IP packet")? {
        NetSlice::Ipv4(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        NetSlice::Ipv6(ip) => {
            (ip.header().source_addr().into(), ip.header().destination_addr().into())
        }
        NetSlice::Arp(_) => bail!("an ARP packet"),
    };
    let (from, to) = match sliced.transport {
        Some(TransportSlice::Tcp(tcp)) => (tcp.source_port(), tcp.destination_port()),
        Some(TransportSlice::Udp(udp)) => (udp.source_port(), udp.destination_port()),
        _ => (0, 0),
    };
    Ok((SocketAddr::new(source, from), SocketAddr::new(destination, to)))
}

/// The wrong checksums of a whole packet, computed from scratch by another implementation.
///
/// # Errors
/// It is not an IP packet.
pub fn wrong_checksums(packet: &[u8]) -> Result<Vec<&'static str>> {
    let headers = PacketHeaders::from_ethernet_slice(packet)?;
    let payload = headers.payload.slice();
    let mut wrong = Vec::new();
    let transport = headers.transport;
    let mut computed = transport.clone();
    match headers.net.context("no IP packet")? {
        NetHeaders::Ipv4(ip, _) => {
            if ip.header_checksum != ip.calc_header_checksum() {
                wrong.push("IPv4");
            }
            // Zero means: no checksum.
            let has_none =
                matches!(&transport, Some(TransportHeader::Udp(udp)) if udp.checksum == 0);
            if let Some(computed) = computed.as_mut().filter(|_| !has_none) {
                computed.update_checksum_ipv4(&ip, payload)?;
            }
        }
        NetHeaders::Ipv6(ip, _) => {
            if let Some(computed) = &mut computed {
                computed.update_checksum_ipv6(&ip, payload)?;
            }
        }
        NetHeaders::Arp(_) => bail!("an ARP packet"),
    }
    if computed != transport {
        wrong.extend(transport.map(|header| match header {
            TransportHeader::Tcp(_) => "TCP",
            TransportHeader::Udp(_) => "UDP",
            TransportHeader::Icmpv4(_) => "ICMP",
            TransportHeader::Icmpv6(_) => "ICMPv6",
        }));
    }
    Ok(wrong)
}

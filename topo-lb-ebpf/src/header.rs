//! The IP header of a packet, as plain values.

use aya_ebpf::bindings::__sk_buff;

use crate::access::{ETHERNET, length, load, words};
use crate::family::{Family, V4, V6};

/// The kind of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketKind {
    /// A datagram in one piece.
    Whole,
    /// A fragment that has the transport header.
    First,
    /// A fragment that does not have it.
    Later,
    /// A packet that is not translated.
    Other,
    /// A packet that ends too early or contradicts itself.
    Malformed,
}

/// An IP header, and the place of what follows it.
pub(crate) struct Header<F: Family> {
    pub(crate) source: F::Address,
    pub(crate) destination: F::Address,
    /// The datagram's identification, as in the packet; only for fragments.
    pub(crate) identification: u32,
    /// Offset of what follows: the transport header, unless it is a later fragment.
    pub(crate) transport: u32,
    /// Offset behind the packet's last byte.
    pub(crate) end: u32,
    /// IPv4: the header's checksum, as in the packet.
    pub(crate) checksum: u16,
    /// The protocol of what follows.
    pub(crate) protocol: u8,
    pub(crate) kind: PacketKind,
}

/// Reading an address family's headers.
pub(crate) trait Read: Family {
    /// `skb->protocol`, in host order.
    const ETHER_TYPE: u16;
    /// The protocol of ICMP.
    const ICMP: u8;

    /// Bytes of a header without options or extensions.
    const BYTES: u32;

    /// The header at `offset`: behind the Ethernet header, or in the quote of an ICMP error
    /// (`is_quote`), which ends early.
    fn header(skb: *mut __sk_buff, offset: u32, is_quote: bool) -> Header<Self>;
}

impl Read for V4 {
    const ETHER_TYPE: u16 = 0x0800;
    const ICMP: u8 = 1;
    const BYTES: u32 = 20;

    #[inline(always)]
    fn header(skb: *mut __sk_buff, offset: u32, is_quote: bool) -> Header<Self> {
        let mut header = Header {
            source: 0,
            destination: 0,
            identification: 0,
            transport: 0,
            end: 0,
            checksum: 0,
            protocol: 0,
            kind: PacketKind::Malformed,
        };
        let words =
            if is_quote { load::<[u32; 5]>(skb, offset) } else { words::<5>(skb, ETHERNET) };
        let Some([first, second, third, source, destination]) = words else {
            return header;
        };
        let [version, _, high, low] = first.to_ne_bytes();
        let total = u32::from(u16::from_be_bytes([high, low]));
        let [_, _, flags, offset_low] = second.to_ne_bytes();
        let [_, protocol, sum_high, sum_low] = third.to_ne_bytes();
        let bytes = u32::from(version & 15) * 4;
        header.source = source;
        header.destination = destination;
        header.identification = second & u32::from_ne_bytes([0xff, 0xff, 0, 0]);
        header.transport = offset + bytes;
        header.checksum = u16::from_ne_bytes([sum_high, sum_low]);
        header.protocol = protocol;
        // A packet that has yet to be segmented may be longer than its header can say (BIG TCP).
        let room = length(skb).wrapping_sub(offset);
        let total = if total == 0 && room > 0xffff { room } else { total };
        header.end = offset + total;
        if version >> 4 != 4 || bytes < 20 || total < bytes || (!is_quote && total > room) {
            return header;
        }
        header.kind = if flags & 0x1f != 0 || offset_low != 0 {
            PacketKind::Later
        } else if flags & 0x20 != 0 {
            PacketKind::First
        } else {
            PacketKind::Whole
        };
        header
    }
}

/// Most extension headers that are skipped; a packet with more is not translated.
const EXTENSIONS: u32 = 6;

impl Read for V6 {
    const ETHER_TYPE: u16 = 0x86dd;
    const ICMP: u8 = 58;
    const BYTES: u32 = 40;

    #[inline(always)]
    fn header(skb: *mut __sk_buff, offset: u32, is_quote: bool) -> Header<Self> {
        let mut header = Header {
            source: [0; 4],
            destination: [0; 4],
            identification: 0,
            transport: offset + 40,
            end: 0,
            checksum: 0,
            protocol: 0,
            kind: PacketKind::Malformed,
        };
        let words =
            if is_quote { load::<[u32; 10]>(skb, offset) } else { words::<10>(skb, ETHERNET) };
        let Some([first, second, a, b, c, d, e, f, g, h]) = words else {
            return header;
        };
        let [high, low, protocol, _] = second.to_ne_bytes();
        header.source = [a, b, c, d];
        header.destination = [e, f, g, h];
        header.protocol = protocol;
        let room = length(skb).wrapping_sub(offset + 40);
        let payload = u32::from(u16::from_be_bytes([high, low]));
        let payload = if payload == 0 && room > 0xffff { room } else { payload };
        header.end = offset + 40 + payload;
        if first.to_ne_bytes()[0] >> 4 != 6 || (!is_quote && payload > room) {
            return header;
        }
        header.kind = PacketKind::Whole;
        extensions(skb, &mut header);
        header
    }
}

/// Skips the extension headers of RFC 8200 §4 that may precede a transport header.
#[inline(always)]
fn extensions(skb: *mut __sk_buff, header: &mut Header<V6>) {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    for _ in 0..EXTENSIONS {
        if !matches!(header.protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION) {
            return;
        }
        let Some([word, identification]) = load::<[u32; 2]>(skb, header.transport) else {
            header.kind = PacketKind::Malformed;
            return;
        };
        let [next, length, third, fourth] = word.to_ne_bytes();
        let mut bytes = (u32::from(length) + 1) * 8;
        match header.protocol {
            // The destination is not the last one yet.
            ROUTING if fourth != 0 => {
                header.kind = PacketKind::Other;
                return;
            }
            FRAGMENT => {
                bytes = 8;
                header.identification = identification;
                if third != 0 || fourth & 0xf8 != 0 {
                    header.kind = PacketKind::Later;
                    header.protocol = next;
                    return;
                }
                // A fragment that is a whole datagram (RFC 6946) is handled as unfragmented.
                if fourth & 1 != 0 {
                    header.kind = PacketKind::First;
                }
            }
            _ => {}
        }
        header.protocol = next;
        header.transport += bytes;
    }
    header.kind = PacketKind::Other;
}

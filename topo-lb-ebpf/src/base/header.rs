//! The IP header of a packet, as plain values.

use aya_ebpf::bindings::__sk_buff;

use crate::base::access::{ETHERNET, length, load, words};
use crate::base::family::{Family, V4, V6};

/// The kind of a packet.
#[repr(u8)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PacketKind {
    /// A datagram in one piece.
    Whole = 0,
    /// A fragment that has the transport header.
    First = 1,
    /// A fragment that does not have it.
    Later = 2,
    /// A packet that is not translated.
    Other = 3,
    /// A packet that ends too early or contradicts itself.
    Malformed = 4,
}

impl PacketKind {
    /// The kind with this number.
    #[inline(always)]
    const fn of(number: u8) -> Self {
        match number {
            0 => Self::Whole,
            1 => Self::First,
            2 => Self::Later,
            3 => Self::Other,
            _ => Self::Malformed,
        }
    }
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
    /// IPv4: the header's third word, as in the packet: time to live, protocol, checksum.
    pub(crate) third: u32,
    /// The protocol of what follows.
    pub(crate) protocol: u8,
    pub(crate) kind: PacketKind,
}

impl<F: Family> Header<F> {
    /// IPv4: the header's checksum, as in the packet.
    #[inline(always)]
    pub(crate) const fn checksum(&self) -> u16 {
        let [_, _, high, low] = self.third.to_ne_bytes();
        u16::from_ne_bytes([high, low])
    }
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
            third: 0,
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
        let [_, protocol, _, _] = third.to_ne_bytes();
        let bytes = u32::from(version & 15) * 4;
        header.source = source;
        header.destination = destination;
        header.identification = second & u32::from_ne_bytes([0xff, 0xff, 0, 0]);
        header.transport = offset + bytes;
        header.third = third;
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
            third: 0,
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
        if is_extension(protocol) {
            let behind = Behind(skip_extensions(skb, header.transport, protocol.into()));
            header.kind = behind.kind();
            header.protocol = behind.protocol();
            header.transport = behind.transport();
            header.identification = behind.identification();
        }
        header
    }
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// Whether a header of RFC 8200 §4 that may precede a transport header.
#[inline(always)]
const fn is_extension(protocol: u8) -> bool {
    matches!(protocol, HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION)
}

/// What is behind the extension headers: the result of [`skip_extensions`]. In one register, as a third
/// frame with more than 16 bytes passes the limit of 512 for a program's stack on arm64.
///
/// Bits 0..16: `transport`, as in [`Header`] ([`EXTENSIONS`] headers of at most 2,048 bytes end below
/// 2^16, in a quote, too); 16..24: `protocol`; 24..32: `kind`; 32..64: `identification`.
#[derive(Clone, Copy)]
struct Behind(u64);

impl Behind {
    #[inline(always)]
    const fn transport(self) -> u32 {
        self.0 as u16 as u32
    }

    #[inline(always)]
    const fn protocol(self) -> u8 {
        (self.0 >> 16) as u8
    }

    #[inline(always)]
    const fn kind(self) -> PacketKind {
        PacketKind::of((self.0 >> 24) as u8)
    }

    #[inline(always)]
    const fn identification(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    const fn with_kind(self, kind: PacketKind) -> Self {
        Self(self.0 & !(0xff << 24) | (kind as u64) << 24)
    }

    /// Behind a header with `bytes` bytes, which names the `next` protocol.
    #[inline(always)]
    const fn skipped(self, bytes: u64, next: u8) -> Self {
        Self((self.0 & !(0xff << 16) | (next as u64) << 16) + bytes)
    }
}

/// Skips the extension headers at `transport`, of which `protocol` is the first. Returns a [`Behind`].
///
/// A global function, like those in `steps`: the verifier would otherwise check the rest of each caller
/// once for every number of extension headers.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn skip_extensions(skb: *mut __sk_buff, transport: u32, protocol: u32) -> u64 {
    let mut behind = Behind(u64::from(protocol as u8) << 16 | u64::from(transport as u16));
    for _ in 0..EXTENSIONS {
        if !is_extension(behind.protocol()) {
            return behind.0;
        }
        let Some([word, identification]) = load::<[u32; 2]>(skb, behind.transport()) else {
            return behind.with_kind(PacketKind::Malformed).0;
        };
        let [next, length, third, fourth] = word.to_ne_bytes();
        let mut bytes = (u64::from(length) + 1) * 8;
        match behind.protocol() {
            // The destination is not the last one yet.
            ROUTING if fourth != 0 => break,
            FRAGMENT => {
                bytes = 8;
                behind = Behind(u64::from(behind.0 as u32) | u64::from(identification) << 32);
                if third != 0 || fourth & 0xf8 != 0 {
                    return behind.with_kind(PacketKind::Later).skipped(0, next).0;
                }
                // A fragment that is a whole datagram (RFC 6946) is handled as unfragmented.
                if fourth & 1 != 0 {
                    behind = behind.with_kind(PacketKind::First);
                }
            }
            _ => {}
        }
        behind = behind.skipped(bytes, next);
    }
    behind.with_kind(PacketKind::Other).0
}

//! The fast path: one access to a packet's head shows that most packets are not translated.

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::address::{TCP, UDP};

use crate::base::access::{ETHERNET, Packet, direct, words};
use crate::base::family::{V4, V6};
use crate::base::header::Read;
use crate::base::transport::{ACK, SYN};

/// The packet summary: protocol, addresses and ports.
pub(crate) struct PacketSummary<F: Read> {
    pub(crate) protocol: u8,
    pub(crate) source: F::Address,
    pub(crate) destination: F::Address,
    /// Both ports, as in the packet.
    pub(crate) ports: u32,
}

/// Reads a packet by one access.
pub(crate) trait FastPath: Read {
    /// The summary of an unfragmented TCP segment or UDP datagram whose ports follow directly after
    /// a plain IP header; `None` for any other packet.
    fn summary(packet: impl Packet) -> Option<PacketSummary<Self>>;

    /// Whether a TCP segment with a [`summary`](Self::summary) has SYN and not ACK.
    #[inline(always)]
    fn is_syn(skb: *mut __sk_buff) -> bool {
        // The fourth word of TCP's header begins with the offset of the data and the flags.
        let flags =
            direct::<1>(skb, ETHERNET + Self::BYTES + 12).map(|[word]| word.to_ne_bytes()[1]);
        flags.is_some_and(|flags| flags & (SYN | ACK) == SYN)
    }

    /// The destination; `None` if the packet ends before it.
    fn destination(skb: *mut __sk_buff) -> Option<Self::Address>;
}

impl FastPath for V4 {
    #[inline(always)]
    fn summary(packet: impl Packet) -> Option<PacketSummary<Self>> {
        let [first, second, third, source, destination, ports] = packet.direct::<6>(ETHERNET)?;
        let [version_and_words, _, high, low] = first.to_ne_bytes();
        let [_, _, fragment, offset] = second.to_ne_bytes();
        let [_, protocol, _, _] = third.to_ne_bytes();
        let total = u32::from(u16::from_be_bytes([high, low]));
        let is_plain = version_and_words == 0x45
            && matches!(protocol, TCP | UDP)
            // No more fragments, and offset zero.
            && fragment & 0x3f == 0
            && offset == 0
            && total >= Self::BYTES + 4
            && total + ETHERNET <= packet.length();
        if is_plain { Some(PacketSummary { protocol, source, destination, ports }) } else { None }
    }

    #[inline(always)]
    fn destination(skb: *mut __sk_buff) -> Option<u32> {
        let [destination] = words(skb, ETHERNET + 16)?;
        Some(destination)
    }
}

impl FastPath for V6 {
    #[inline(always)]
    fn summary(packet: impl Packet) -> Option<PacketSummary<Self>> {
        let [first, second, a, b, c, d, e, f, g, h, ports] = packet.direct::<11>(ETHERNET)?;
        let [high, low, protocol, _] = second.to_ne_bytes();
        let payload = u32::from(u16::from_be_bytes([high, low]));
        let is_plain = first.to_ne_bytes()[0] >> 4 == 6
            && matches!(protocol, TCP | UDP)
            && payload >= 4
            && payload + Self::BYTES + ETHERNET <= packet.length();
        let (source, destination) = ([a, b, c, d], [e, f, g, h]);
        if is_plain { Some(PacketSummary { protocol, source, destination, ports }) } else { None }
    }

    #[inline(always)]
    fn destination(skb: *mut __sk_buff) -> Option<[u32; 4]> {
        words(skb, ETHERNET + 24)
    }
}

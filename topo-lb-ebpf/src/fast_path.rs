//! The fast path: one access to a packet's head shows that most packets are not translated.

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::reply_filter::folded;

use crate::access::{ETHERNET, direct, length, words};
use crate::family::{V4, V6};
use crate::header::Read;

/// The packet summary: sender and ports.
pub(crate) struct PacketSummary<F: Read> {
    pub(crate) source: F::Address,
    /// Both ports, as in the packet.
    pub(crate) ports: u32,
}

/// Reads a packet by one access.
pub(crate) trait FastPath: Read {
    /// The summary of an unfragmented TCP segment or UDP datagram whose ports follow directly after
    /// a plain IP header; `None` for any other packet.
    fn summary(skb: *mut __sk_buff) -> Option<PacketSummary<Self>>;

    /// The destination; `None` if the packet ends before it.
    fn destination(skb: *mut __sk_buff) -> Option<Self::Address>;

    /// An address folded to one word.
    fn folded(address: Self::Address) -> u32;
}

impl FastPath for V4 {
    #[inline(always)]
    fn summary(skb: *mut __sk_buff) -> Option<PacketSummary<Self>> {
        let [first, second, third, source, _, ports] = direct::<6>(skb, ETHERNET)?;
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
            && total + ETHERNET <= length(skb);
        if is_plain { Some(PacketSummary { source, ports }) } else { None }
    }

    #[inline(always)]
    fn destination(skb: *mut __sk_buff) -> Option<u32> {
        let [destination] = words(skb, ETHERNET + 16)?;
        Some(destination)
    }

    #[inline(always)]
    fn folded(address: u32) -> u32 {
        address
    }
}

impl FastPath for V6 {
    #[inline(always)]
    fn summary(skb: *mut __sk_buff) -> Option<PacketSummary<Self>> {
        let [first, second, a, b, c, d, _, _, _, _, ports] = direct::<11>(skb, ETHERNET)?;
        let [high, low, protocol, _] = second.to_ne_bytes();
        let payload = u32::from(u16::from_be_bytes([high, low]));
        let is_plain = first.to_ne_bytes()[0] >> 4 == 6
            && matches!(protocol, TCP | UDP)
            && payload >= 4
            && payload + Self::BYTES + ETHERNET <= length(skb);
        if is_plain { Some(PacketSummary { source: [a, b, c, d], ports }) } else { None }
    }

    #[inline(always)]
    fn destination(skb: *mut __sk_buff) -> Option<[u32; 4]> {
        words(skb, ETHERNET + 24)
    }

    #[inline(always)]
    fn folded(address: [u32; 4]) -> u32 {
        folded(address)
    }
}

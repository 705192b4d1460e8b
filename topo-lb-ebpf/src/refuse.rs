//! Refusing: the client hears at once that there is nobody, by a RST or an ICMP error that looks
//! as if the Service's address had sent it, back out of the device that asked.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{bpf_skb_adjust_room, bpf_skb_change_tail};
use topo_lb_common::address::{SCTP, TCP};

use crate::checksum::{self, Change, fold};
use crate::clock::now;
use crate::family::{V4, V6};
use crate::maps::REFUSALS;
use crate::packet::{
    ACK, ETHERNET, FIN, Header, PacketKind, RST, Read, SYN, load, ports, transport,
};
use crate::rewrite::{send_back, store};
use crate::tc::DROP;
use crate::totals::{Hook, count};
use crate::track::Track;

/// `BPF_ADJ_ROOM_MAC`: room between the Ethernet and the IP header.
const BEHIND_ETHERNET: u32 = 1;
/// Of the packet that an ICMP error quotes, at most this much: IPv4 with all its options and TCP's
/// header, or IPv6 with some extension headers. A multiple of four.
const LONGEST_QUOTE: u32 = 80;
/// Time to live, or hop limit, of what is sent.
const HOPS: u8 = 64;

/// Whether one more refusal may be answered by this CPU now.
#[inline(always)]
fn may_answer() -> bool {
    // SAFETY: this CPU's element.
    REFUSALS.get_ptr_mut(0).is_some_and(|bucket| unsafe { (*bucket).take(now()) })
}

#[inline(always)]
fn unanswered() -> i32 {
    count(Hook::Ingress, |packets| &mut packets.unanswered);
    DROP
}

#[inline(always)]
fn answered(skb: *mut __sk_buff) -> i32 {
    let Some(verdict) = send_back(skb) else {
        count(Hook::Ingress, |packets| &mut packets.dropped);
        return DROP;
    };
    count(Hook::Ingress, |packets| &mut packets.refused);
    verdict
}

#[inline(always)]
fn failed() -> i32 {
    count(Hook::Ingress, |packets| &mut packets.dropped);
    DROP
}

/// Answers a TCP segment with a RST (RFC 9293 §3.10.7.1). The segment itself becomes it, with the
/// length that it has: so it does not matter whether a device is still to compute its checksum,
/// which no program can know. Options and payload of a RST mean nothing to who gets it.
#[inline(never)]
pub(crate) fn reset<F: Track>(skb: *mut __sk_buff) -> i32 {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    // SAFETY: a field of the hook's context.
    let segments = unsafe { (&raw const (*skb).gso_segs).read_volatile() };
    // What the device has yet to cut would become many.
    let is_answerable = header.kind == PacketKind::Whole
        && segments <= 1
        && transport.flags & RST == 0
        && F::is_unicast(header.source);
    if !is_answerable || !may_answer() {
        return unanswered();
    }
    let had_ack = transport.flags & ACK != 0;
    let counted = u32::from(transport.flags & SYN != 0)
        + u32::from(transport.flags & FIN != 0)
        + transport.payload;
    let (sequence, acknowledged, flags) = if had_ack {
        (transport.acknowledged, 0, RST)
    } else {
        (0, transport.sequence.wrapping_add(counted), RST | ACK)
    };
    let Some([old_word, old_tail]) = load::<[u32; 2]>(skb, header.transport + 12) else {
        return failed();
    };
    let [offset, _, _, _] = old_word.to_ne_bytes();
    let word = u32::from_ne_bytes([offset, flags, 0, 0]);
    let [sum_a, sum_b, _, _] = old_tail.to_ne_bytes();
    let change = Change::NONE
        .word(transport.sequence.to_be(), sequence.to_be())
        .word(transport.acknowledged.to_be(), acknowledged.to_be())
        .word(old_word, word)
        .word(old_tail, u32::from_ne_bytes([sum_a, sum_b, 0, 0]));
    let turned = ports(transport.destination_port(), transport.source_port());
    // Both addresses and both ports change places: their sum does not change.
    let is_done = checksum::replace(skb, header.transport + 16, change, TCP)
        && store(skb, header.transport, &[turned, sequence.to_be(), acknowledged.to_be(), word])
        && store(skb, header.transport + 18, &0_u16)
        && F::store(
            skb,
            ETHERNET,
            (header.destination, header.source),
            header.checksum,
            Change::NONE,
        );
    if is_done { answered(skb) } else { failed() }
}

/// Answers any packet with "port unreachable" (RFC 792, RFC 4443), which quotes the packet's
/// headers, as far as ports go.
#[inline(never)]
pub(crate) fn unreachable<F: Track>(skb: *mut __sk_buff) -> i32 {
    let header = F::header(skb, ETHERNET, false);
    if !F::is_unicast(header.source) || !may_answer() {
        return unanswered();
    }
    let ports = match header.protocol {
        TCP => 20,
        SCTP => 12,
        _ => 8,
    };
    let bytes = (header.transport - ETHERNET + ports) & !3;
    if !(28..=LONGEST_QUOTE).contains(&bytes) {
        return unanswered();
    }
    // SAFETY: a context of this hook.
    if unsafe { bpf_skb_change_tail(skb, ETHERNET + bytes, 0) } != 0 {
        return failed();
    }
    let (mut sum, mut of_transport) = (0, 0);
    for word in 0..LONGEST_QUOTE / 4 {
        if word * 4 >= bytes {
            break;
        }
        let offset = ETHERNET + word * 4;
        let Some(word) = load::<u32>(skb, offset) else {
            return failed();
        };
        sum += u64::from(word);
        if offset >= header.transport {
            of_transport += u64::from(word);
        }
    }
    if let Some(offset) = checksum::offset_in(header.protocol) {
        let offset = header.transport + offset;
        let Some(stored) = load::<u16>(skb, offset) else {
            return failed();
        };
        match checksum::is_pending(skb, offset, stored) {
            // The device computes it over what is quoted, and the sum of the error has to be of that.
            Some(true) => sum += u64::from(!stored) + u64::from(checksum::computed(of_transport)),
            Some(false) => {}
            None => return failed(),
        }
    }
    // SAFETY: a context of this hook.
    let has_room =
        unsafe { bpf_skb_adjust_room(skb, F::ERROR_HEADERS as i32, BEHIND_ETHERNET, 0) == 0 };
    if has_room && F::store_error(skb, &header, bytes, sum) { answered(skb) } else { failed() }
}

/// What an ICMP error is, in an address family.
pub(crate) trait Refuse: Read {
    /// Bytes of the IP and the ICMP header.
    const ERROR_HEADERS: u32;

    /// Whether an address is one host's, which may be answered.
    fn is_unicast(address: Self::Address) -> bool;

    /// Writes both headers, before a quote of `bytes` bytes whose sum is `sum`, as an answer to
    /// the packet whose header was `to`. Whether it could be done.
    fn store_error(skb: *mut __sk_buff, to: &Header<Self>, bytes: u32, sum: u64) -> bool;
}

impl Refuse for V4 {
    const ERROR_HEADERS: u32 = 28;

    #[inline(always)]
    fn is_unicast(address: u32) -> bool {
        let first = address.to_ne_bytes()[0];
        first != 0 && first != 127 && first < 224
    }

    #[inline(always)]
    fn store_error(skb: *mut __sk_buff, to: &Header<Self>, bytes: u32, sum: u64) -> bool {
        const PORT_UNREACHABLE: [u8; 2] = [3, 3];
        let [high, low] = ((Self::ERROR_HEADERS + bytes) as u16).to_be_bytes();
        let first = u32::from_ne_bytes([0x45, 0, high, low]);
        // Not to be fragmented, so it needs no identification (RFC 6864).
        let second = u32::from_ne_bytes([0, 0, 0x40, 0]);
        let third = u32::from_ne_bytes([HOPS, Self::ICMP, 0, 0]);
        let addresses = u64::from(to.destination) + u64::from(to.source);
        let header_sum = u64::from(first) + u64::from(second) + u64::from(third) + addresses;
        let [a, b] = (!fold(header_sum)).to_ne_bytes();
        let [kind, code] = PORT_UNREACHABLE;
        let icmp = u32::from_ne_bytes([kind, code, 0, 0]);
        let [c, d] = (!fold(u64::from(icmp) + sum)).to_ne_bytes();
        store(
            skb,
            ETHERNET,
            &[
                first,
                second,
                u32::from_ne_bytes([HOPS, Self::ICMP, a, b]),
                to.destination,
                to.source,
                u32::from_ne_bytes([kind, code, c, d]),
                0,
            ],
        )
    }
}

impl Refuse for V6 {
    const ERROR_HEADERS: u32 = 48;

    #[inline(always)]
    fn is_unicast(address: [u32; 4]) -> bool {
        address[0].to_ne_bytes()[0] != 0xff && address != [0; 4]
    }

    #[inline(always)]
    fn store_error(skb: *mut __sk_buff, to: &Header<Self>, bytes: u32, sum: u64) -> bool {
        const PORT_UNREACHABLE: [u8; 2] = [1, 4];
        let length = 8 + bytes;
        let [high, low] = (length as u16).to_be_bytes();
        let [kind, code] = PORT_UNREACHABLE;
        let icmp = u32::from_ne_bytes([kind, code, 0, 0]);
        // The pseudo header of RFC 8200 §8.1.
        let mut total = u64::from(icmp)
            + sum
            + u64::from(length.to_be())
            + u64::from(u32::from(Self::ICMP).to_be());
        let mut index = 0;
        while index < 4 {
            total += u64::from(to.source[index]) + u64::from(to.destination[index]);
            index += 1;
        }
        let [c, d] = (!fold(total)).to_ne_bytes();
        let ([s0, s1, s2, s3], [d0, d1, d2, d3]) = (to.destination, to.source);
        store(
            skb,
            ETHERNET,
            &[
                u32::from_ne_bytes([0x60, 0, 0, 0]),
                u32::from_ne_bytes([high, low, Self::ICMP, HOPS]),
                s0,
                s1,
                s2,
                s3,
                d0,
                d1,
                d2,
                d3,
                u32::from_ne_bytes([kind, code, c, d]),
                0,
            ],
        )
    }
}

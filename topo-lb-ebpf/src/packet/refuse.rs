//! Refuses a packet: answers at once with a RST or an ICMP error from the Service's address, out of
//! the device that received the packet.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::helpers::{bpf_skb_adjust_room, bpf_skb_change_tail};
use topo_lb_common::address::{SCTP, TCP};
use topo_lb_common::packets::Outcome;

use crate::base::access::{ETHERNET, device, load, store};
use crate::base::checksum::{self, Change, fold};
use crate::base::clock::now;
use crate::base::family::Family;
use crate::base::header::PacketKind;
use crate::base::transport::{ACK, FIN, RST, SYN, ports, split_ports, transport};
use crate::packet::budget;
use crate::packet::forward::send_back;
use crate::packet::outcomes::{Hook, count, dropped};
use crate::packet::outside::is_outside;
use crate::packet::rewrite::Write;
use crate::packet::unreachable::Unreachable;
use crate::packet::verdict::Verdict;

/// `BPF_ADJ_ROOM_MAC`: makes room between the Ethernet and the IP header.
const BEHIND_ETHERNET: u32 = 1;
/// Most bytes of a packet that an ICMP error quotes: IPv4 with all options and TCP's header, or
/// IPv6 with some extension headers. A multiple of four.
const LONGEST_QUOTE: u32 = 80;

/// Whether the device, or the client outside of this node, may get another answer now.
#[inline(always)]
fn may_answer<F: Family>(skb: *mut __sk_buff, client: F::Address) -> bool {
    let payer = if is_outside(skb) { budget::of_address::<F>(client) } else { device(skb) };
    budget::may_refuse(payer, now())
}

#[inline(always)]
fn unanswered(hook: Hook) -> Verdict {
    count(hook, Outcome::Unanswered);
    Verdict::Drop
}

/// Sends the answer. On egress the packet is on its way to the router that it came from.
#[inline(always)]
fn answered(skb: *mut __sk_buff, hook: Hook) -> Verdict {
    let sent = if hook == Hook::Egress { Some(Verdict::Next) } else { send_back(skb) };
    let Some(verdict) = sent else {
        return dropped(hook);
    };
    count(hook, Outcome::Refused);
    verdict
}

/// Answers a TCP segment with a RST (RFC 9293 §3.10.7.1). The segment itself becomes the RST and
/// keeps its length, so it does not matter whether a device has yet to compute its checksum, which
/// no program can know. The receiver of a RST ignores its options and payload.
#[inline(always)]
pub(crate) fn reset<F: Write + Unreachable>(skb: *mut __sk_buff, hook: Hook) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    // SAFETY: a field of the hook's context.
    let segments = unsafe { (&raw const (*skb).gso_segs).read_volatile() };
    // A packet that the device has yet to segment would become many RSTs.
    let is_answerable = header.kind == PacketKind::Whole
        && segments <= 1
        && transport.flags & RST == 0
        && F::is_unicast(header.source);
    if !is_answerable || !may_answer::<F>(skb, header.source) {
        return unanswered(hook);
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
        return dropped(hook);
    };
    let [offset, _, _, _] = old_word.to_ne_bytes();
    let word = u32::from_ne_bytes([offset, flags, 0, 0]);
    let [sum_a, sum_b, _, _] = old_tail.to_ne_bytes();
    let change = Change::NONE
        .word(transport.sequence.to_be(), sequence.to_be())
        .word(transport.acknowledged.to_be(), acknowledged.to_be())
        .word(old_word, word)
        .word(old_tail, u32::from_ne_bytes([sum_a, sum_b, 0, 0]));
    let (source, destination) = split_ports(transport.ports);
    let turned = ports(destination, source);
    // Addresses and ports are swapped: their sum stays the same.
    let is_done = checksum::replace(skb, header.transport + 16, change, TCP)
        && store(skb, header.transport, &[turned, sequence.to_be(), acknowledged.to_be(), word])
        && store(skb, header.transport + 18, &0_u16)
        && F::store(
            skb,
            ETHERNET,
            (header.destination, header.source),
            header.checksum(),
            Change::NONE,
        );
    if is_done { answered(skb, hook) } else { dropped(hook) }
}

/// Sums of a quote's words, as for an Internet checksum.
struct Sums {
    /// Of all of it.
    sum: u64,
    /// Of what is behind the IP headers.
    of_transport: u64,
}

impl Sums {
    /// From a result of [`sums`].
    #[inline(always)]
    fn of(number: u64) -> Option<Self> {
        let sums = Self { sum: number & 0xffff, of_transport: number >> 16 & 0xffff };
        if number == UNREADABLE { None } else { Some(sums) }
    }
}

/// Result of [`sums`]: the packet ends before the quote.
const UNREADABLE: u64 = u64::MAX;

/// Sums the `bytes` bytes behind the Ethernet header, of which those from `transport` on are behind the IP
/// headers. Returns [`Sums`], or [`UNREADABLE`]. A global function, like those in `steps`: the verifier
/// would otherwise check the rest of the caller once for every length.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn sums(skb: *mut __sk_buff, bytes: u32, transport: u32) -> u64 {
    let (mut sum, mut of_transport) = (0, 0);
    for word in 0..LONGEST_QUOTE / 4 {
        if word * 4 >= bytes {
            break;
        }
        let offset = ETHERNET + word * 4;
        let Some(word) = load::<u32>(skb, offset) else {
            return UNREADABLE;
        };
        sum += u64::from(word);
        if offset >= transport {
            of_transport += u64::from(word);
        }
    }
    u64::from(fold(of_transport)) << 16 | u64::from(fold(sum))
}

/// Answers any packet with "port unreachable" (RFC 792, RFC 4443), which quotes the packet's
/// headers up to its ports.
#[inline(always)]
pub(crate) fn unreachable<F: Unreachable>(skb: *mut __sk_buff) -> Verdict {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    if !F::is_unicast(header.source) || !may_answer::<F>(skb, header.source) {
        return unanswered(hook);
    }
    let ports = match header.protocol {
        TCP => 20,
        SCTP => 12,
        _ => 8,
    };
    let bytes = (header.transport - ETHERNET + ports) & !3;
    if !(28..=LONGEST_QUOTE).contains(&bytes) {
        return unanswered(hook);
    }
    // SAFETY: a context of this hook.
    if unsafe { bpf_skb_change_tail(skb, ETHERNET + bytes, 0) } != 0 {
        return dropped(hook);
    }
    let Some(Sums { mut sum, of_transport }) = Sums::of(sums(skb, bytes, header.transport)) else {
        return dropped(hook);
    };
    if let Some(offset) = checksum::offset_in(header.protocol) {
        let offset = header.transport + offset;
        let Some(stored) = load::<u16>(skb, offset) else {
            return dropped(hook);
        };
        match checksum::is_pending(skb, offset, stored) {
            // The device computes it over the quoted bytes, so the error's sum uses that checksum.
            Some(true) => sum += u64::from(!stored) + u64::from(checksum::computed(of_transport)),
            Some(false) => {}
            None => return dropped(hook),
        }
    }
    // SAFETY: a context of this hook.
    let has_room =
        unsafe { bpf_skb_adjust_room(skb, F::ERROR_HEADERS as i32, BEHIND_ETHERNET, 0) == 0 };
    if has_room && F::store_error(skb, &header, bytes, sum) {
        answered(skb, hook)
    } else {
        dropped(hook)
    }
}

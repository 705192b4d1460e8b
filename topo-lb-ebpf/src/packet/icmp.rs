//! Translates ICMP errors about packets of translated connections: their sender, and their quote.

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::connection::{FROM_CLIENT, TO_CLIENT};
use topo_lb_common::packets::Outcome;

use crate::base::access::{ETHERNET, load, store};
use crate::base::checksum;
use crate::base::clock::now;
use crate::base::header::{Header, PacketKind, Read};
use crate::base::transport::ports;
use crate::decide::resolve::{Asks, Resolution};
use crate::packet::connection::{find, holds, is_alive};
use crate::packet::forward::forward;
use crate::packet::four_tuple::{EntryFields, FourTuple};
use crate::packet::hop::{self, is_of_service, is_proved};
use crate::packet::onward::{self, is_hopped, send_by, sender, way};
use crate::packet::opening::decide_for;
use crate::packet::outcomes::{Hook, count, dropped, next, unmatched};
use crate::packet::outside::client_device;
use crate::packet::rewrite::Write;
use crate::packet::tc::Translate;
use crate::packet::verdict::Verdict;

/// Bytes of an ICMP header, before the quote.
const HEADER: u32 = 8;
/// Offset of the checksum in it.
const CHECKSUM: u32 = 2;

/// Whether a type is an error that quotes a packet: RFC 792 (destination unreachable, time
/// exceeded, parameter problem) and RFC 4443 (the same, and packet too big).
#[inline(always)]
const fn is_error(is_ipv6: bool, icmp_type: u8) -> bool {
    if is_ipv6 { matches!(icmp_type, 1..=4) } else { matches!(icmp_type, 3 | 11 | 12) }
}

/// Handles an error from a client, about a reply.
#[inline(always)]
pub(crate) fn from_client<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    translate::<F>(skb, Hook::Ingress)
}

/// Handles an error to a client, about a packet that it sent.
#[inline(always)]
pub(crate) fn to_client<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    translate::<F>(skb, Hook::Egress)
}

/// Translates an ICMP error about a packet of a translated connection.
#[inline(always)]
fn translate<F: Translate>(skb: *mut __sk_buff, hook: Hook) -> Verdict {
    let outer = &F::header(skb, ETHERNET, false);
    let Some(word) = load::<u32>(skb, outer.transport) else {
        return next(hook, Outcome::Malformed);
    };
    if !is_error(F::IS_IPV6, word.to_ne_bytes()[0]) {
        return next(hook, Outcome::Untouched);
    }
    let at = outer.transport + HEADER;
    let inner = F::header(skb, at, true);
    // Bytes behind the packet's end do not belong to the quote, and no checksum covers them.
    let quoted = if inner.transport + 4 <= outer.end { load(skb, inner.transport) } else { None };
    let (PacketKind::Whole | PacketKind::First, Some::<u32>(quoted)) = (inner.kind, quoted) else {
        return next(hook, Outcome::Unknown);
    };
    let says = FourTuple::of_packet(&inner, quoted);
    // The sender of the error got the quoted packet, so this hook translates replies to it.
    let way = if hook == Hook::Ingress { FROM_CLIENT } else { TO_CLIENT };
    let key = says.reversed().key(inner.protocol, way, client_device(skb));
    let found = find::<F>(&key).filter(|found| {
        outer.destination == inner.source
            && is_alive(EntryFields::of(*found), inner.protocol, now())
    });
    let Some(found) = found else {
        let may_hop =
            hook == Hook::Ingress && onward::may_be(skb) && outer.destination == inner.source;
        return if may_hop { Verdict::HopError } else { unmatched::<F>(hook, outer.destination) };
    };
    let answer = FourTuple::of_entry(found);
    // SAFETY: a field of a look-up's value.
    let kind = unsafe { EntryFields::of(found).kind.read_volatile() };
    if !holds::<F>(found, &key) {
        return dropped(hook);
    }
    if !quote(skb, outer, at, &inner, quoted, &answer) {
        return dropped(hook);
    }
    count(hook, Outcome::Errors);
    forward::<F>(skb, kind, hook)
}

/// Sends an error on to the node of the endpoint that has sent what it is about, if its flow is known (direct return).
/// [`Verdict::ChooseHop`] if it is not.
#[inline(always)]
pub(crate) fn send_on<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let (says, protocol) = answered::<F>(skb);
    let key = says.key(protocol, FROM_CLIENT, client_device(skb));
    let Some(address) = hop::known::<F>(&key) else { return Verdict::ChooseHop };
    onward::send_to::<F>(skb, F::ICMP, address)
        .unwrap_or_else(|| next(Hook::Ingress, Outcome::Untouched))
}

/// Sends an error on by the table of its Service: a router may lead errors by another node than the flow itself.
#[inline(always)]
pub(crate) fn choose<F: Translate>(skb: *mut __sk_buff) -> Verdict {
    let (says, protocol) = answered::<F>(skb);
    let frontend = F::frontend(says.destination, says.destination_port, protocol);
    let sender = sender(skb);
    if !is_hopped::<F>(skb, sender) && is_of_service::<F>(&frontend) {
        let client = (says.source, says.source_port);
        let resolved = decide_for::<F>(&frontend, Asks::Outside, client);
        let endpoint = F::endpoint_parts(&resolved.endpoint);
        if resolved.verdict == Resolution::Redirect
            && let Some(way) = way::<F>(skb, F::ICMP, endpoint.0, sender)
            && is_proved::<F>(resolved.service, endpoint, way.dmac)
            && let Some(verdict) = send_by::<F>(skb, &way)
        {
            return verdict;
        }
    }
    next(Hook::Ingress, Outcome::Untouched)
}

/// The packet that the one that an error quotes has answered, and its protocol.
#[inline(always)]
fn answered<F: Translate>(skb: *mut __sk_buff) -> (FourTuple<F>, u8) {
    let at = F::header(skb, ETHERNET, false).transport + HEADER;
    let inner = F::header(skb, at, true);
    let quoted = load::<u32>(skb, inner.transport).unwrap_or_default();
    (FourTuple::of_packet(&inner, quoted).reversed(), inner.protocol)
}

/// Makes the error quote the packet that `answer` would reply to. Returns whether it succeeded.
#[inline(always)]
fn quote<F: Write + Read>(
    skb: *mut __sk_buff,
    outer: &Header<F>,
    at: u32,
    inner: &Header<F>,
    quoted: u32,
    answer: &FourTuple<F>,
) -> bool {
    let to = answer.reversed();
    let addresses = (to.source, to.destination);
    let change = F::change((inner.source, inner.destination), addresses);
    let ports = ports(to.source_port, to.destination_port);
    let mut quote = change.word(quoted, ports);
    if !F::IS_IPV6 {
        quote = quote.half(inner.checksum(), change.apply(inner.checksum()));
    }
    // The quote may end before the transport header's checksum.
    if let Some(offset) = checksum::offset_in(inner.protocol)
        && inner.transport + offset + 2 <= outer.end
        && let Some(old) = load::<u16>(skb, inner.transport + offset)
        && old != 0
    {
        let new = change.word(quoted, ports).apply(old);
        quote = quote.half(old, new);
        if !store(skb, inner.transport + offset, &new) {
            return false;
        }
    }
    let offset = outer.transport + CHECKSUM;
    // As the kernel's own NAT (`nf_nat_icmp_reply_translation`, net/netfilter/nf_nat_proto.c): where answers
    // get another source, an error gets the same, also of a router in between. Its own address is foreign on
    // the way from here: networks that check sources would drop it, and with it path MTU discovery.
    let is_kept = to.destination == inner.destination;
    let source = if is_kept { outer.source } else { to.destination };
    let outside = (source, to.source);
    let around = F::change((outer.source, outer.destination), outside);
    store(skb, inner.transport, &ports)
        && F::store(skb, at, addresses, inner.checksum(), change)
        && checksum::replace(skb, offset, quote, F::ICMP)
        && (!F::IS_IPV6 || checksum::replace_addresses(skb, offset, around, F::ICMP, true))
        && F::store(skb, ETHERNET, outside, outer.checksum(), around)
}

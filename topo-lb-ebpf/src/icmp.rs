//! ICMP errors about translated packets: what they quote, and who they come from, is put back into
//! the words of the one who is told.

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::connection::{FROM_CLIENT, TO_CLIENT};

use crate::checksum;
use crate::clock::now;
use crate::connection;
use crate::packet::{ETHERNET, Header, PacketKind, Read, load, ports};
use crate::rewrite::{Says, Write, store};
use crate::tc::{DROP, NEXT, onward};
use crate::totals::{Hook, count};
use crate::track::{Track, turned};

/// Bytes of an ICMP header, before what it quotes.
const HEADER: u32 = 8;
/// Offset of the checksum in it.
const CHECKSUM: u32 = 2;

/// Whether a type is an error that quotes a packet: RFC 792 (destination unreachable, time
/// exceeded, parameter problem) and RFC 4443 (the same, and packet too big).
#[inline(always)]
const fn is_error(is_ipv6: bool, icmp_type: u8) -> bool {
    if is_ipv6 { matches!(icmp_type, 1..=4) } else { matches!(icmp_type, 3 | 11 | 12) }
}

/// Of a client, about an answer that it got.
#[inline(never)]
pub(crate) fn from_client<F: Track>(skb: *mut __sk_buff) -> i32 {
    translate::<F>(skb, Hook::Ingress)
}

/// To a client, about what it has sent.
#[inline(never)]
pub(crate) fn to_client<F: Track>(skb: *mut __sk_buff) -> i32 {
    translate::<F>(skb, Hook::Egress)
}

/// Translates an ICMP error, if it is about a packet of a connection that is translated.
#[inline(always)]
fn translate<F: Track>(skb: *mut __sk_buff, hook: Hook) -> i32 {
    let outer = &<F as Read>::header(skb, ETHERNET, false);
    let Some(word) = load::<u32>(skb, outer.transport) else {
        count(hook, |packets| &mut packets.malformed);
        return NEXT;
    };
    if !is_error(F::IS_IPV6, word.to_ne_bytes()[0]) {
        count(hook, |packets| &mut packets.untouched);
        return NEXT;
    }
    let at = outer.transport + HEADER;
    let inner = <F as Read>::header(skb, at, true);
    // What is behind the packet's end is not of the quote, and no checksum covers it.
    let quoted = if inner.transport + 4 <= outer.end { load(skb, inner.transport) } else { None };
    let (PacketKind::Whole | PacketKind::First, Some::<u32>(quoted)) = (inner.kind, quoted) else {
        count(hook, |packets| &mut packets.unknown);
        return NEXT;
    };
    let [a, b, c, d] = quoted.to_ne_bytes();
    let says = Says::<F> {
        source: inner.source,
        destination: inner.destination,
        source_port: u16::from_be_bytes([a, b]),
        destination_port: u16::from_be_bytes([c, d]),
    };
    // It was quoted by one that got it, so its answer is what this hook translates.
    let way = if hook == Hook::Ingress { FROM_CLIENT } else { TO_CLIENT };
    let key = F::tuple(&turned(&says), inner.protocol, way);
    let found = connection::find::<F>(&key).filter(|found| {
        outer.destination == inner.source
            && connection::is_alive(F::held(*found), inner.protocol, now())
    });
    let Some(found) = found else {
        let is_service = hook == Hook::Ingress;
        count(
            hook,
            |packets| {
                if is_service { &mut packets.unknown } else { &mut packets.untouched }
            },
        );
        return NEXT;
    };
    // SAFETY: a look-up's pointer.
    let (answer, kind) = unsafe { (F::says(found.as_ptr()), F::held(found).kind.read_volatile()) };
    if !quote(skb, outer, at, &inner, quoted, &answer) {
        count(hook, |packets| &mut packets.dropped);
        return DROP;
    }
    count(hook, |packets| &mut packets.errors);
    onward(skb, kind, hook)
}

/// Makes the error speak of the packet that `answer` would answer. Whether it could be done.
#[inline(always)]
fn quote<F: Track>(
    skb: *mut __sk_buff,
    outer: &Header<F>,
    at: u32,
    inner: &Header<F>,
    quoted: u32,
    answer: &Says<F>,
) -> bool {
    let to = turned(answer);
    let addresses = (to.source, to.destination);
    let change = <F as Write>::change((inner.source, inner.destination), addresses);
    let ports = ports(to.source_port, to.destination_port);
    let mut quote = change.word(quoted, ports);
    if !F::IS_IPV6 {
        quote = quote.half(inner.checksum, change.apply(inner.checksum));
    }
    // The quote need not reach as far as the transport's checksum.
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
    // Told by the endpoint itself, or by somebody between, who is not ours to hide.
    let source = if outer.source == inner.destination { to.destination } else { outer.source };
    let outside = (source, to.source);
    let around = <F as Write>::change((outer.source, outer.destination), outside);
    store(skb, inner.transport, &ports)
        && F::store(skb, at, addresses, inner.checksum, change)
        && checksum::replace(skb, offset, quote, F::ICMP)
        && (!F::IS_IPV6 || checksum::replace_addresses(skb, offset, around, F::ICMP, true))
        && F::store(skb, ETHERNET, outside, outer.checksum, around)
}

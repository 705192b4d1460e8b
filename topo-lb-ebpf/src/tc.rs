//! The tc hooks: packets of clients that have no socket here.
//!
//! What most packets need is one function, and what few need is one function each, which reads the
//! packet anew: the stack of a program with all that it calls is 512 bytes.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use aya_ebpf::bindings::{__sk_buff, BPF_ANY, TC_ACT_SHOT, TC_ACT_UNSPEC};
use topo_lb_common::address::{SCTP, TCP, UDP};
use topo_lb_common::connection::{FRAGMENT_LIFETIME, FROM_CLIENT, HAIRPIN, TO_CLIENT};

use crate::clock::now;
use crate::connection::{self, Chosen, EndpointCheck};
use crate::family::{V4, V6};
use crate::packet::{ETHERNET, FIN, Header, PacketKind, RST, SYN, Transport, ports_of, transport};
use crate::reply_filter::is_foreign;
use crate::resolve::in_range;
use crate::rewrite::{Says, readdress, rewrite, send_back};
use crate::totals::{Hook, count};
use crate::track::Track;
use crate::{icmp, refuse};

/// The verdict by which other programs of the hook see the packet next, changed or not: the same
/// number for tcx (`TCX_NEXT`) and for clsact.
pub(crate) const NEXT: i32 = TC_ACT_UNSPEC;
/// The verdict that drops.
pub(crate) const DROP: i32 = TC_ACT_SHOT;

/// What is to be done next with a packet, where a function gives no verdict.
mod step {
    /// See what has become of the connection's endpoint.
    pub(super) const DOUBTFUL: i32 = 108;
    /// Choose an endpoint.
    pub(super) const OPEN: i32 = 100;
    /// See what a packet without a connection is.
    pub(super) const STRAY: i32 = 106;
    /// Remember the way back.
    pub(super) const CHOSEN: i32 = 104;
    /// Translate: the connection is there, and its endpoint is settled.
    pub(super) const SETTLED: i32 = 105;
    /// Look at what an ICMP error quotes.
    pub(super) const ERROR: i32 = 101;
    /// Leave a datagram alone of which this is the first fragment.
    pub(super) const LEFT: i32 = 107;
    /// Refuse by a RST.
    pub(super) const RESET: i32 = 102;
    /// Refuse by an ICMP error.
    pub(super) const UNREACHABLE: i32 = 103;
}

/// A packet comes in by a device.
#[inline(always)]
pub(crate) fn ingress(skb: *mut __sk_buff) -> i32 {
    match ether_type(skb) {
        V4_TYPE => ingress_of::<V4>(skb),
        V6_TYPE => ingress_of::<V6>(skb),
        _ => untouched(Hook::Ingress),
    }
}

#[inline(always)]
fn ingress_of<F: Track>(skb: *mut __sk_buff) -> i32 {
    // Most packets are not ours, and their destination is enough to see it. An address that a
    // fragment or an ICMP error is sent to is one of a Service, too.
    match F::destination(skb) {
        None => return malformed(Hook::Ingress),
        Some(destination) if !in_range::<F>(destination) => return untouched(Hook::Ingress),
        Some(_) => {}
    }
    let mut next = from_client::<F>(skb, false);
    if next == step::DOUBTFUL {
        next = reconsider::<F>(skb);
        if next == step::SETTLED {
            next = from_client::<F>(skb, true);
        }
    }
    if next == step::OPEN {
        next = open::<F>(skb);
        if next == step::CHOSEN {
            next = expect_answers::<F>(skb);
        }
        if next == step::SETTLED {
            next = from_client::<F>(skb, true);
        }
    }
    if next == step::STRAY {
        next = stray::<F>(skb);
    }
    match next {
        // What was remembered a moment ago is gone again.
        step::OPEN => dropped(Hook::Ingress),
        step::LEFT => leave_fragments::<F>(skb, Hook::Ingress),
        step::ERROR => icmp::from_client::<F>(skb),
        step::RESET => refuse::reset::<F>(skb),
        step::UNREACHABLE => refuse::unreachable::<F>(skb),
        verdict => verdict,
    }
}

/// A packet goes out by a device.
#[inline(always)]
pub(crate) fn egress(skb: *mut __sk_buff) -> i32 {
    match ether_type(skb) {
        V4_TYPE => egress_of::<V4>(skb),
        V6_TYPE => egress_of::<V6>(skb),
        _ => untouched(Hook::Egress),
    }
}

#[inline(always)]
fn egress_of<F: Track>(skb: *mut __sk_buff) -> i32 {
    // Most packets are not ours, and one look is enough to see it.
    if F::summary(skb).is_some_and(|packet| is_foreign(&packet)) {
        return untouched(Hook::Egress);
    }
    match to_client::<F>(skb) {
        step::LEFT => leave_fragments::<F>(skb, Hook::Egress),
        step::ERROR => icmp::to_client::<F>(skb),
        verdict => verdict,
    }
}

const V4_TYPE: u16 = <V4 as crate::packet::Read>::ETHER_TYPE;
const V6_TYPE: u16 = <V6 as crate::packet::Read>::ETHER_TYPE;

/// Host order; of what is in a VLAN whose tag is in the packet itself, the VLAN's.
#[inline(always)]
fn ether_type(skb: *mut __sk_buff) -> u16 {
    // SAFETY: a field of the hook's context: a word whose lower half is in network order.
    u16::from_be(unsafe { (&raw const (*skb).protocol).read_volatile() } as u16)
}

#[inline(always)]
fn untouched(hook: Hook) -> i32 {
    count(hook, |packets| &mut packets.untouched);
    NEXT
}

#[inline(always)]
fn malformed(hook: Hook) -> i32 {
    count(hook, |packets| &mut packets.malformed);
    NEXT
}

#[inline(always)]
fn unknown(hook: Hook) -> i32 {
    count(hook, |packets| &mut packets.unknown);
    NEXT
}

#[inline(always)]
fn dropped(hook: Hook) -> i32 {
    count(hook, |packets| &mut packets.dropped);
    DROP
}

#[inline(always)]
fn said<F: Track>(header: &Header<F>, transport: &Transport) -> Says<F> {
    addressed(header, transport.ports)
}

/// What a packet says; `ports` as the packet has them.
#[inline(always)]
fn addressed<F: Track>(header: &Header<F>, ports: u32) -> Says<F> {
    let [a, b, c, d] = ports.to_ne_bytes();
    Says {
        source: header.source,
        destination: header.destination,
        source_port: u16::from_be_bytes([a, b]),
        destination_port: u16::from_be_bytes([c, d]),
    }
}

#[inline(never)]
fn from_client<F: Track>(skb: *mut __sk_buff, is_settled: bool) -> i32 {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    if header.kind == PacketKind::Malformed {
        return malformed(hook);
    }
    if header.kind == PacketKind::Other {
        return untouched(hook);
    }
    if header.kind == PacketKind::Later {
        return later(skb, &header, hook);
    }
    if header.protocol == F::ICMP {
        return step::ERROR;
    }
    if !matches!(header.protocol, TCP | UDP | SCTP) {
        return untouched(hook);
    }
    let transport = transport(skb, &header);
    if !transport.is_sound {
        return malformed(hook);
    }
    let says = said(&header, &transport);
    let key = F::tuple(&says, header.protocol, FROM_CLIENT);
    let without =
        if connection::opens(header.protocol, &transport) { step::OPEN } else { step::STRAY };
    let Some(found) = connection::find::<F>(&key) else {
        return without;
    };
    let now = now();
    match connection::check_endpoint::<F>(found, header.protocol, &transport, now) {
        EndpointCheck::Doubtful if !is_settled => step::DOUBTFUL,
        EndpointCheck::Other => {
            connection::forget::<F>(&key, found, header.protocol);
            without
        }
        _ => {
            connection::note::<F>(found, header.protocol, transport.flags, now);
            // SAFETY: a look-up's pointer.
            let (to, kind) =
                unsafe { (F::says(found.as_ptr()), F::held(found).kind.read_volatile()) };
            if !carry(skb, &header, &transport, &to, kind, now, hook) {
                return dropped(hook);
            }
            count(hook, |packets| &mut packets.translated);
            onward(skb, kind, hook)
        }
    }
}

/// A packet of a connection whose endpoint may be another one's by now, or gone.
#[inline(never)]
fn reconsider<F: Track>(skb: *mut __sk_buff) -> i32 {
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let says = said(&header, &transport);
    let key = F::tuple(&says, header.protocol, FROM_CLIENT);
    let opens = connection::opens(header.protocol, &transport);
    let without = if opens { step::OPEN } else { step::STRAY };
    let Some(found) = connection::find::<F>(&key) else {
        return without;
    };
    let frontend = F::frontend(says.destination, says.destination_port, header.protocol);
    // An acknowledgement alone is not answered.
    let asks = transport.payload != 0 || transport.flags & (SYN | FIN) != 0;
    match connection::reconsider::<F>(found, &frontend, header.protocol, opens, asks, now()) {
        EndpointCheck::Other => {
            connection::forget::<F>(&key, found, header.protocol);
            without
        }
        EndpointCheck::GivenUp => {
            connection::forget::<F>(&key, found, header.protocol);
            step::RESET
        }
        _ => step::SETTLED,
    }
}

/// A packet in the middle of no connection that is known.
#[inline(never)]
fn stray<F: Track>(skb: *mut __sk_buff) -> i32 {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let frontend = F::frontend(header.destination, transport.destination_port(), header.protocol);
    let service = connection::peek::<F>(&frontend);
    if !service.is_ours {
        left(&header, hook)
    } else if service.routes || transport.flags & RST != 0 {
        // Of a connection that somebody else translates, perhaps, who was here first.
        unknown(hook)
    } else {
        step::UNREACHABLE
    }
}

/// A packet to a frontend that opens a connection.
#[inline(never)]
fn open<F: Track>(skb: *mut __sk_buff) -> i32 {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    let says = said(&header, &transport);
    let frontend = F::frontend(says.destination, says.destination_port, header.protocol);
    match connection::choose::<F>(&says, &frontend, header.protocol, transport.sequence, now()) {
        Chosen::Endpoint => step::CHOSEN,
        Chosen::Untouched => left(&header, hook),
        Chosen::Failed => dropped(hook),
        Chosen::Refused if header.protocol == TCP => step::RESET,
        Chosen::Refused => step::UNREACHABLE,
    }
}

/// The packet that an endpoint was just chosen for.
#[inline(never)]
fn expect_answers<F: Track>(skb: *mut __sk_buff) -> i32 {
    let hook = Hook::Ingress;
    let header = F::header(skb, ETHERNET, false);
    let transport = transport(skb, &header);
    if !connection::expect_answers::<F>(&said(&header, &transport), header.protocol) {
        return dropped(hook);
    }
    count(hook, |packets| &mut packets.opened);
    step::SETTLED
}

#[inline(never)]
fn to_client<F: Track>(skb: *mut __sk_buff) -> i32 {
    let hook = Hook::Egress;
    let header = F::header(skb, ETHERNET, false);
    match header.kind {
        PacketKind::Malformed => return malformed(hook),
        PacketKind::Other => return untouched(hook),
        PacketKind::Later => return later(skb, &header, hook),
        PacketKind::Whole | PacketKind::First => {}
    }
    if header.protocol == F::ICMP {
        return step::ERROR;
    }
    if !matches!(header.protocol, TCP | UDP | SCTP) {
        return untouched(hook);
    }
    // The look-up wants no more than the ports.
    let Some(ports) = ports_of(skb, &header) else {
        return malformed(hook);
    };
    let says = addressed(&header, ports);
    let key = F::tuple(&says, header.protocol, TO_CLIENT);
    let Some(found) = connection::find::<F>(&key) else {
        return left(&header, hook);
    };
    let transport = transport(skb, &header);
    if !transport.is_sound {
        return malformed(hook);
    }
    let now = now();
    if !connection::answers::<F>(found, header.protocol, transport.flags, now) {
        // The client's port is another connection's now: what follows is not of this one either.
        connection::forget::<F>(&key, found, header.protocol);
        return left(&header, hook);
    }
    connection::note::<F>(found, header.protocol, transport.flags, now);
    // SAFETY: a look-up's pointer.
    let (to, kind) = unsafe { (F::says(found.as_ptr()), F::held(found).kind.read_volatile()) };
    if !carry(skb, &header, &transport, &to, kind, now, hook) {
        return dropped(hook);
    }
    count(hook, |packets| &mut packets.translated);
    NEXT
}

/// Translates a packet, and sees to the fragments that follow it. Whether it could be done.
#[inline(always)]
fn carry<F: Track>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    transport: &Transport,
    to: &Says<F>,
    kind: u8,
    now: u64,
    hook: Hook,
) -> bool {
    if header.kind == PacketKind::First {
        let key = F::fragment(
            (header.source, header.destination),
            header.identification,
            header.protocol,
            hook as u8,
        );
        let translation = F::translation(now, (to.source, to.destination), kind & HAIRPIN);
        let _ = F::fragments().insert(&key, &translation, BPF_ANY.into());
    }
    rewrite(skb, header, transport, to)
}

/// What is to be done with a packet that is not ours: nothing, and nothing with the fragments that
/// follow it.
#[inline(always)]
fn left<F: Track>(header: &Header<F>, hook: Hook) -> i32 {
    if header.kind == PacketKind::First { step::LEFT } else { untouched(hook) }
}

/// The identification may be one that a datagram had which was translated, a moment ago.
#[inline(never)]
fn leave_fragments<F: Track>(skb: *mut __sk_buff, hook: Hook) -> i32 {
    let header = F::header(skb, ETHERNET, false);
    let key = F::fragment(
        (header.source, header.destination),
        header.identification,
        header.protocol,
        hook as u8,
    );
    let _ = F::fragments().remove(&key);
    untouched(hook)
}

/// A fragment without ports goes where the first one went. One whose first fragment was not seen
/// is left alone: nobody can say which Service it is for.
#[inline(always)]
fn later<F: Track>(skb: *mut __sk_buff, header: &Header<F>, hook: Hook) -> i32 {
    let key = F::fragment(
        (header.source, header.destination),
        header.identification,
        header.protocol,
        hook as u8,
    );
    let Some(found) = F::fragments().get_ptr(&key) else {
        return if hook == Hook::Ingress { unknown(hook) } else { untouched(hook) };
    };
    // SAFETY: a look-up's pointer.
    let (first_seen, addresses, kind) = unsafe { F::translated(found) };
    if now().saturating_sub(first_seen) > FRAGMENT_LIFETIME {
        return if hook == Hook::Ingress { unknown(hook) } else { untouched(hook) };
    }
    if !readdress(skb, ETHERNET, header, addresses) {
        return dropped(hook);
    }
    count(hook, |packets| &mut packets.translated);
    onward(skb, kind, hook)
}

/// Lets the packet go on, or back to a client that is its own endpoint.
#[inline(always)]
pub(crate) fn onward(skb: *mut __sk_buff, kind: u8, hook: Hook) -> i32 {
    if kind & HAIRPIN == 0 {
        return NEXT;
    }
    send_back(skb).unwrap_or_else(|| dropped(hook))
}

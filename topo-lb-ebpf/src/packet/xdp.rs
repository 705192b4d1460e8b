//! The fast path of what tc has decided: before the kernel has made a packet of a frame, that of an established
//! connection with a source of ours ([`crate::packet::snat`]), or a datagram that nobody has answered yet, is
//! translated and sent back out of its device, that of a flow with direct return ([`crate::packet::hop`]) is sent on as
//! it came, and one of a client that may not dial the frontend, or may not have another connection, is dropped.
//!
//! It decides nothing. What a program of tc would record, answer or check is tc's, and so is what the
//! kernel has to look at: all that passes as it came.

use core::ptr::NonNull;

use aya_ebpf::bindings::{
    BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as FibLookup, xdp_action, xdp_md,
};
use aya_ebpf::helpers::bpf_fib_lookup;
use topo_lb_common::address::{TCP, UDP};
use topo_lb_common::connection::{self as kind, Connection4, FROM_CLIENT, OUTSIDE_DEVICE};
use topo_lb_common::packets::Outcome;
use topo_lb_common::snat::is_source_port;

use crate::base::clock::now;
use crate::base::family::{ConnectionOf, V4, V6};
use crate::base::header::Read as _;
use crate::base::maps::{RETURNS_DIRECTLY, SNAT};
use crate::base::transport::{Transport, split_ports};
use crate::decide::frontend_filter::has_bit;
use crate::decide::resolve::look_up;
use crate::decide::trace::is_on;
use crate::packet::budget::{self, Permit};
use crate::packet::connection::{self, EndpointCheck};
use crate::packet::fast_path::{FastPath, PacketSummary};
use crate::packet::four_tuple::{EntryFields, FourTuple};
use crate::packet::frame::{self, Ends, Extent, InPlace, device, ether_type};
use crate::packet::hop::{self, is_of_service};
use crate::packet::onward::peer;
use crate::packet::outcomes::done_by_xdp;
use crate::packet::outside::is_denied;
use crate::packet::own;
use crate::packet::reply_filter::is_no_endpoint;
use crate::packet::snat::Route;
use crate::packet::state;
use crate::packet::unreachable::Unreachable;

/// What [`send_back`] returns for a packet of no connection that it looks for: no action of XDP.
const UNKNOWN: u32 = u32::MAX;
/// What it returns where the kernel gives connections their source, for example as somebody has rules for what it
/// forwards; or if a frame is for another host.
const NOT_GIVEN: u32 = u32::MAX - 1;

/// Handles a frame that a device has received.
#[inline(always)]
pub(crate) fn receive(frame: *mut xdp_md) -> u32 {
    match ether_type(frame) {
        Some(V4::ETHER_TYPE) => first_of(frame, send_back4, send_on4, drop_opening4),
        Some(V6::ETHER_TYPE) => first_of(frame, send_back6, send_on6, drop_opening6),
        // With the tag of a VLAN it belongs to another device.
        _ => xdp_action::XDP_PASS,
    }
}

/// What becomes of a frame: the steps look at it one after the other, until one knows it.
#[inline(always)]
fn first_of(
    frame: *mut xdp_md,
    send_back: extern "C" fn(*mut xdp_md) -> u32,
    send_on: extern "C" fn(*mut xdp_md) -> u32,
    drop_opening: extern "C" fn(*mut xdp_md) -> u32,
) -> u32 {
    let sent_back = send_back(frame);
    if !matches!(sent_back, UNKNOWN | NOT_GIVEN) {
        return sent_back;
    }
    let sent_on = if RETURNS_DIRECTLY.load() != 0 { send_on(frame) } else { UNKNOWN };
    match (sent_on, sent_back) {
        (UNKNOWN, UNKNOWN) => drop_opening(frame),
        (UNKNOWN, _) => xdp_action::XDP_PASS,
        _ => sent_on,
    }
}

// Global functions, as those of `steps`: the frames of all together are more than a program's stack.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn send_back4(frame: *mut xdp_md) -> u32 {
    send_back::<V4>(frame).unwrap_or(xdp_action::XDP_PASS)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn send_back6(frame: *mut xdp_md) -> u32 {
    send_back::<V6>(frame).unwrap_or(xdp_action::XDP_PASS)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn send_on4(frame: *mut xdp_md) -> u32 {
    send_on::<V4>(frame).unwrap_or(xdp_action::XDP_PASS)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn send_on6(frame: *mut xdp_md) -> u32 {
    send_on::<V6>(frame).unwrap_or(xdp_action::XDP_PASS)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn drop_opening4(frame: *mut xdp_md) -> u32 {
    drop_opening::<V4>(frame)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn drop_opening6(frame: *mut xdp_md) -> u32 {
    drop_opening::<V6>(frame)
}

/// Drops and counts a packet for which [`send_back`] has found nothing if tc would only do that.
#[inline(always)]
fn drop_opening<F: FastPath + InPlace + Unreachable>(frame: *mut xdp_md) -> u32 {
    let Some(why) = why_dropped::<F>(frame) else { return xdp_action::XDP_PASS };
    done_by_xdp(why);
    xdp_action::XDP_DROP
}

/// Why tc would only drop and count a packet for which [`send_back`] has found nothing: it opens a connection that `loadBalancerSourceRanges`
/// deny, or one more than its client may have. `None`: tc would do something else, or the packet cannot be read.
#[inline(always)]
fn why_dropped<F: FastPath + InPlace + Unreachable>(frame: *mut xdp_md) -> Option<Outcome> {
    let packet = F::summary(frame)?;
    let room = u32::from(F::extent(frame)?.bytes) - F::BYTES;
    let transport = frame::transport::<F>(frame, packet.protocol, room)?;
    if !connection::opens(packet.protocol, &transport) {
        return None;
    }
    let (source_port, port) = split_ports(packet.ports);
    let frontend = F::frontend(packet.destination, port, packet.protocol);
    let says = FourTuple::<F> {
        source: packet.source,
        destination: packet.destination,
        source_port,
        destination_port: port,
    };
    let key = says.key(packet.protocol, FROM_CLIENT, OUTSIDE_DEVICE);
    let now = now();
    let why = if is_denied::<F>(&frontend, packet.source) {
        Outcome::Denied
    } else {
        match budget::may_open_another::<F>(&key, now) {
            // A frontend without an endpoint answers: tc limits only what has one.
            Permit::Granted => return None,
            // What is sent on as it comes needs no place.
            _ if RETURNS_DIRECTLY.load() != 0 && is_of_service::<F>(&frontend) => return None,
            _ if !look_up::<F>(&frontend, true).routes => return None,
            Permit::Limited => Outcome::Limited,
            Permit::Full => Outcome::TableFull,
        }
    };
    // The kernel drops a packet of a source that is no single host. A tracer is told of each that tc drops.
    let is_tcs = !F::is_unicast(packet.source)
        || is_on()
        || match packet.protocol {
            UDP => own::is_own::<F>(&key, now),
            // A SYN that is sent again. Datagrams of what is half-open have been found before.
            _ => connection::find_half_open::<F>(&key).is_some(),
        };
    if is_tcs { None } else { Some(why) }
}

/// Sends a packet of an established connection on, or a datagram of a half-open one: returns `XDP_TX`, [`UNKNOWN`]
/// if it is of none, or [`NOT_GIVEN`]. `None`: it is tc's, and as it came.
#[inline(always)]
fn send_back<F: FastPath + InPlace + Route>(frame: *mut xdp_md) -> Option<u32> {
    let Some((address, _)) = own_end::<F>(frame, Carries::Translated) else {
        return Some(NOT_GIVEN);
    };
    let packet = F::summary(frame)?;
    if !is_known(&packet, address) {
        return None;
    }
    let extent = F::extent(frame)?;
    let room = u32::from(extent.bytes) - F::BYTES;
    let transport = frame::transport::<F>(frame, packet.protocol, room)?;
    let (source_port, destination_port) = split_ports(packet.ports);
    let says = FourTuple::<F> {
        source: packet.source,
        destination: packet.destination,
        source_port,
        destination_port,
    };
    let key = says.key(packet.protocol, FROM_CLIENT, OUTSIDE_DEVICE);
    let found = match connection::find_established::<F>(&key) {
        Some(found) => found,
        None if packet.protocol == TCP => return Some(UNKNOWN),
        // Where nobody answers, every datagram is of a half-open connection.
        None => match connection::find_half_open::<F>(&key) {
            Some(found) if state::establishes::<F>(found, packet.protocol, &transport) => {
                return None;
            }
            Some(found) => found,
            None => return Some(UNKNOWN),
        },
    };
    let now = now();
    if extent.hops <= 1 || !is_settled::<F>(found, packet.protocol, &transport, now) {
        return None;
    }
    let to = FourTuple::<F>::of_entry(found);
    let stored = frame::checksum::<F>(frame, &packet, room)?;
    let ends = next_hop::<F>(frame, packet.protocol, &extent, (to.source, to.destination))?;
    if !connection::holds::<F>(found, &key) {
        return None;
    }
    state::note::<F>(found, packet.protocol, &transport, now);
    if packet.protocol == TCP {
        frame::rewrite::<F, 5>(frame, &packet, stored, &to, ends)?;
    } else {
        frame::rewrite::<F, 2>(frame, &packet, stored, &to, ends)?;
    }
    done_by_xdp(Outcome::Translated);
    Some(xdp_action::XDP_TX)
}

/// Sends a packet of a known flow on to the node of its endpoint: returns `XDP_TX`, or [`UNKNOWN`] if it is of none.
/// `None`: it is tc's, and as it came.
#[inline(always)]
fn send_on<F: FastPath + InPlace + Route>(frame: *mut xdp_md) -> Option<u32> {
    let (own, sender) = own_end::<F>(frame, Carries::AsItCame)?;
    let packet = F::summary(frame)?;
    let extent = F::extent(frame)?;
    let room = u32::from(extent.bytes) - F::BYTES;
    let transport = frame::transport::<F>(frame, packet.protocol, room)?;
    // Each SYN begins a flow.
    if packet.protocol == TCP && connection::opens(TCP, &transport) {
        return Some(UNKNOWN);
    }
    let (source_port, destination_port) = split_ports(packet.ports);
    let says = FourTuple::<F> {
        source: packet.source,
        destination: packet.destination,
        source_port,
        destination_port,
    };
    let ticks = hop::ticks();
    let key = says.key(packet.protocol, FROM_CLIENT, OUTSIDE_DEVICE);
    let Some(flow) = hop::find::<F>(&key, ticks) else { return Some(UNKNOWN) };
    // What has made its hop goes no further.
    if extent.hops <= 1 || flow.is_due(ticks, source_port) || peer::<F>(sender) != 0 {
        return None;
    }
    let ends = next_hop::<F>(frame, packet.protocol, &extent, (own, flow.endpoint))?;
    // As tc: not back to where it comes from.
    if ends.0 == sender {
        return None;
    }
    flow.note(ticks);
    frame::hop::<F>(frame, &packet, ends)?;
    done_by_xdp(Outcome::SentOn);
    Some(xdp_action::XDP_TX)
}

/// How a packet is to go on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carries {
    Translated,
    AsItCame,
}

/// This node's address on a frame's device, and the Ethernet address of the frame's sender. `None`: packets do not go on
/// by this device; or the frame is for another host.
#[inline(always)]
fn own_end<F: Route>(frame: *mut xdp_md, carries: Carries) -> Option<(F::Address, [u8; 6])> {
    let snat = SNAT.get_ptr(0)?;
    let (address, uplink) = F::own_fields(snat);
    let uplink = match carries {
        // Zero while the kernel gives connections their source.
        Carries::Translated => uplink,
        // SAFETY: a pointer to a complete value; nothing is read.
        Carries::AsItCame => unsafe { &raw const (*snat).direct },
    };
    // SAFETY: fields of an array's element. Only the agent writes them.
    let (address, uplink, ethernet) = unsafe {
        let ethernet = (&raw const (*snat).ethernet).read_volatile();
        (F::words(address.read_volatile()), uplink.read_volatile(), ethernet)
    };
    let (receiver, sender) = frame::ends(frame)?;
    (uplink == device(frame) && receiver == ethernet).then_some((address, sender))
}

/// Whether a packet may be one to a frontend, or a reply to `address`, the source of connections: as tc looks
/// at it first.
#[inline(always)]
fn is_known<F: FastPath>(packet: &PacketSummary<F>, address: F::Address) -> bool {
    let (source_port, port) = split_ports(packet.ports);
    has_bit::<F>(packet.destination, port)
        || is_source_port(port)
            && packet.destination == address
            && !is_no_endpoint::<F>(packet.source, source_port)
}

/// Whether tc would do nothing but translate this packet and send it on.
#[inline(always)]
fn is_settled<F: FastPath>(
    found: NonNull<ConnectionOf<F>>,
    protocol: u8,
    transport: &Transport,
    now: u64,
) -> bool {
    let fields = EntryFields::of(found);
    // SAFETY: a field of a look-up's value.
    let kind = unsafe { fields.kind.read_volatile() };
    // With the packets that are due, the kernel uses its entry of the neighbour, and finds out whether that still
    // answers.
    kind & kind::SNAT != 0
        && !state::is_due::<F>(found, now)
        && !state::changes_state::<F>(found, protocol, transport, now)
        && connection::check_endpoint::<F>(found, protocol, transport, now) == EndpointCheck::Goes
}

/// Where the kernel would send a packet. `None`: the kernel would not send the packet as it is, does
/// not know the neighbour, or uses another device.
#[inline(always)]
fn next_hop<F: Route>(
    frame: *mut xdp_md,
    protocol: u8,
    extent: &Extent,
    (source, destination): (F::Address, F::Address),
) -> Option<Ends> {
    const { assert!(size_of::<FibLookup>() <= size_of::<Connection4>()) };
    // IPv6 has no room for the question on the stack. No program that builds an entry is interrupted by this one.
    let question = F::draft()?.as_ptr().cast::<FibLookup>();
    // SAFETY: this CPU's place, which is larger; all zeros are a valid question.
    let question = unsafe {
        let mut index = 0;
        while index < size_of::<FibLookup>() / 8 {
            question.cast::<u64>().add(index).write_volatile(0);
            index += 1;
        }
        &mut *question
    };
    question.family = F::NUMBER;
    question.l4_protocol = protocol;
    question.__bindgen_anon_1.tot_len = extent.bytes;
    question.__bindgen_anon_2.flowinfo = extent.class;
    question.ifindex = device(frame);
    F::question(question, source, destination);
    // SAFETY: a context of this hook, and a whole question.
    let answer = unsafe {
        bpf_fib_lookup(frame.cast(), &raw mut *question, size_of::<FibLookup>() as i32, 0)
    };
    // Before Linux 6.3 (1fe4850b34ab) the kernel names a neighbour that it does not know yet: by zeros.
    let is_back = answer as u32 == BPF_FIB_LKUP_RET_SUCCESS
        && question.ifindex == device(frame)
        && question.dmac != [0; 6];
    if is_back { Some((question.dmac, question.smac)) } else { None }
}

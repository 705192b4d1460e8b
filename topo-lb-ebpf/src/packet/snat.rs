//! Source NAT of connections from outside to endpoints of other nodes, where the device by which they
//! come also leads to the endpoint. Otherwise the kernel masquerades them ([`crate::packet::outside`]).

use core::ffi::c_void;
use core::hint::cold_path;
use core::mem::offset_of;
use core::ptr::NonNull;

use aya_ebpf::bindings::{
    __sk_buff, BPF_F_CURRENT_NETNS, BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH,
    BPF_FIB_LKUP_RET_NOT_FWDED, BPF_FIB_LKUP_RET_SUCCESS, BPF_FIB_LKUP_RET_UNSUPP_LWT,
    bpf_fib_lookup as FibLookup,
};
use aya_ebpf::helpers::{
    bpf_fib_lookup, bpf_get_prandom_u32, bpf_redirect_neigh, bpf_sk_lookup_udp, bpf_sk_release,
    bpf_skb_vlan_pop, bpf_skc_lookup_tcp,
};
use topo_lb_common::address::{SCTP, TCP, UDP};
use topo_lb_common::connection::{self, FROM_CLIENT};
use topo_lb_common::snat::{Snat, is_source_port, source_port};

use crate::base::access::device;
use crate::base::family::{ConnectionOf, Family, TupleOf, V4, V6};
use crate::base::maps::{SERVES_ALL_FRONTENDS, SNAT};
use crate::base::transport::split_ports;
use crate::packet::fast_path::FastPath;
use crate::packet::four_tuple::{EntryFields, FourTuple};
use crate::packet::reply_filter::is_no_endpoint;
use crate::packet::rewrite::Write;
use crate::packet::verdict::Verdict;

/// An address family whose packets the programs send on to another node.
pub(crate) trait Route: Family {
    /// `AF_INET` or `AF_INET6`.
    const NUMBER: u8;

    /// The family's address and device in `snat`, in place.
    fn own_fields(snat: *const Snat) -> (*const Self::Bytes, *const u32);
    /// A question for the way of a packet with these addresses.
    fn question(question: &mut FibLookup, source: Self::Address, destination: Self::Address);
}

impl Route for V4 {
    const NUMBER: u8 = 2;

    #[inline(always)]
    fn own_fields(snat: *const Snat) -> (*const [u8; 4], *const u32) {
        // SAFETY: a pointer to a complete value; nothing is read.
        unsafe { (&raw const (*snat).address4, &raw const (*snat).device4) }
    }

    #[inline(always)]
    fn question(question: &mut FibLookup, source: u32, destination: u32) {
        question.__bindgen_anon_3.ipv4_src = source;
        question.__bindgen_anon_4.ipv4_dst = destination;
    }
}

impl Route for V6 {
    const NUMBER: u8 = 10;

    #[inline(always)]
    fn own_fields(snat: *const Snat) -> (*const [u8; 16], *const u32) {
        // SAFETY: a pointer to a complete value; nothing is read.
        unsafe { (&raw const (*snat).address6, &raw const (*snat).device6) }
    }

    #[inline(always)]
    fn question(question: &mut FibLookup, source: [u32; 4], destination: [u32; 4]) {
        question.__bindgen_anon_3.ipv6_src = source;
        question.__bindgen_anon_4.ipv6_dst = destination;
    }
}

/// Whether a packet to a port of [`topo_lb_common::snat`] may be a reply to a connection with a source of ours:
/// then [`Verdict::Translate`].
#[inline(always)]
pub(crate) fn look_for_reply<F: Route + FastPath>(skb: *mut __sk_buff) -> Verdict {
    let (Some(snat), Some(packet)) = (SNAT.get_ptr(0), F::summary(skb)) else {
        return Verdict::Next;
    };
    // SAFETY: a field of an array's element. Only the agent writes it.
    let own = unsafe { F::words(F::own_fields(snat).0.read_volatile()) };
    if own != packet.destination || is_no_endpoint::<F>(packet.source, split_ports(packet.ports).0)
    {
        return Verdict::Next;
    }
    Verdict::Translate
}

/// Whether a packet that leaves may be a datagram of a process of this node, from a port that a connection
/// has as its source.
#[inline(always)]
pub(crate) fn may_end_another(skb: *mut __sk_buff, protocol: u8, port: u16) -> bool {
    SERVES_ALL_FRONTENDS.load() != 0
        && protocol == UDP
        && is_source_port(port)
        && arrived_by(skb) == 0
}

/// The interface index of the device by which a packet has come that leaves; zero if a process of this node
/// has sent it.
#[inline(always)]
fn arrived_by(skb: *mut __sk_buff) -> u32 {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw const (*skb).ingress_ifindex).read_volatile() }
}

/// Whether this node has given a packet that leaves its source: a process has sent it, or it is forwarded and
/// masqueraded. Any host can send a packet with a false source through this node. None has an address of
/// this node: the kernel takes no such IPv4 packet from outside (`__fib_validate_source`,
/// net/ipv4/fib_frontend.c), and an IPv6 packet may have come by the device by which it leaves.
#[inline(always)]
pub(crate) fn has_sent<F: Route>(skb: *mut __sk_buff, source: F::Address) -> bool {
    let by = arrived_by(skb);
    by == 0
        || !(F::IS_V6 && by == device(skb))
            && ask::<F>(skb, &mut no_question(), UDP, F::NOWHERE, source)
                == BPF_FIB_LKUP_RET_NOT_FWDED
}

/// The tag of a packet that is not in its bytes; zero without one, and for a tag that has only a priority
/// (VLAN 0): the kernel removes such a tag.
#[inline(always)]
pub(crate) fn vlan(skb: *mut __sk_buff) -> u32 {
    // SAFETY: fields of the hook's context.
    unsafe {
        let is_tagged = (&raw const (*skb).vlan_present).read_volatile() != 0;
        if is_tagged { (&raw const (*skb).vlan_tci).read_volatile() & 0xfff } else { 0 }
    }
}

/// Chooses the source of a connection that the kernel would masquerade. `entry`: that of the client's
/// packets, which no packet uses yet. Returns whether the connection may be opened.
#[inline(always)]
pub(crate) fn choose<F: Route>(
    skb: *mut __sk_buff,
    entry: NonNull<ConnectionOf<F>>,
    protocol: u8,
) -> bool {
    let Some(snat) = SNAT.get_ptr_mut(0) else { return true };
    let (address, uplink) = F::own_fields(snat);
    // SAFETY: fields of an array's element. Only the agent writes them.
    let (address, uplink) = unsafe { (F::words(address.read_volatile()), uplink.read_volatile()) };
    // A packet with a tag belongs to another device.
    if uplink != device(skb) || vlan(skb) != 0 {
        return true;
    }
    let fields = EntryFields::of(entry);
    let to = FourTuple::<F>::of_entry(entry);
    let kind = match leads_to::<F>(skb, protocol, address, to.destination) {
        Way::To(device) if device == uplink => {
            // SAFETY: fields of a look-up's value.
            unsafe { (&raw mut (*entry.as_ptr()).source).write_volatile(F::bytes(address)) };
            // SCTP's CRC32c covers the ports.
            if protocol != SCTP {
                // SAFETY: as above; the helper has no preconditions.
                unsafe { fields.source_port.write_volatile(source_port(bpf_get_prandom_u32())) };
            }
            connection::SNAT
        }
        // The endpoint is on this node, although its slice does not say so: its answers pass here.
        Way::To(_) => 0,
        Way::Nowhere
            if to.destination == address
                || has_socket::<F>(skb, &mut to.key(protocol, FROM_CLIENT, 0)) =>
        {
            0
        }
        // A route may come; then the next packet opens the connection.
        Way::Nowhere => return false,
        Way::Encapsulated => {
            // SAFETY: a field of an array's element.
            unsafe { (&raw mut (*snat).declined).write_volatile(1) };
            // The agent writes the table first.
            return false;
        }
    };
    // SAFETY: as above.
    unsafe { fields.kind.write_volatile(kind) };
    true
}

/// Whether a socket of this node would receive packets with a key, TCP or UDP.
#[inline(always)]
pub(crate) fn has_socket<F: Family>(skb: *mut __sk_buff, key: &mut TupleOf<F>) -> bool {
    /// The kernel's tuple has the same fields as a key, but the ports in network order.
    const fn length<F: Family>() -> u32 {
        (offset_of!(TupleOf<F>, protocol)) as u32
    }
    if key.protocol == SCTP {
        return false;
    }
    let network_order = |key: &mut TupleOf<F>| {
        key.source_port = key.source_port.to_be();
        key.destination_port = key.destination_port.to_be();
    };
    network_order(key);
    let tuple = (&raw mut *key).cast();
    // SAFETY: a context of this hook, and the tuple's bytes; what a look-up returns is released.
    let is_there = unsafe {
        let netns = BPF_F_CURRENT_NETNS as u64;
        let socket = if key.protocol == TCP {
            bpf_skc_lookup_tcp(skb.cast(), tuple, length::<F>(), netns, 0).cast()
        } else {
            bpf_sk_lookup_udp(skb.cast(), tuple, length::<F>(), netns, 0).cast::<c_void>()
        };
        if !socket.is_null() {
            bpf_sk_release(socket);
        }
        !socket.is_null()
    };
    network_order(key);
    is_there
}

/// What becomes of a packet that the kernel would forward.
enum Way {
    /// It leaves by the device with this index.
    To(u32),
    /// It leaves in another packet, by a route with `encap`.
    Encapsulated,
    /// It is for this node itself, or has no route.
    Nowhere,
}

/// Where the kernel would forward a packet.
#[inline(always)]
fn leads_to<F: Route>(
    skb: *mut __sk_buff,
    protocol: u8,
    source: F::Address,
    destination: F::Address,
) -> Way {
    let mut way = no_question();
    match ask::<F>(skb, &mut way, protocol, source, destination) {
        BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH | BPF_FIB_LKUP_RET_FRAG_NEEDED => {
            Way::To(way.ifindex)
        }
        BPF_FIB_LKUP_RET_UNSUPP_LWT => Way::Encapsulated,
        _ => Way::Nowhere,
    }
}

/// A question of the kernel about a packet to forward, before it is filled in.
#[inline(always)]
pub(crate) const fn no_question() -> FibLookup {
    // SAFETY: all zeros are a valid question.
    unsafe { core::mem::zeroed() }
}

/// The kernel's answer, `BPF_FIB_LKUP_RET_…`, about a packet to forward that has come by this device, and in `question`
/// its way.
#[inline(always)]
pub(crate) fn ask<F: Route>(
    skb: *mut __sk_buff,
    question: &mut FibLookup,
    protocol: u8,
    source: F::Address,
    destination: F::Address,
) -> u32 {
    question.family = F::NUMBER;
    question.l4_protocol = protocol;
    question.ifindex = device(skb);
    F::question(question, source, destination);
    // SAFETY: a context of this hook, and a whole question.
    let answer =
        unsafe { bpf_fib_lookup(skb.cast(), &raw mut *question, size_of::<FibLookup>() as i32, 0) };
    answer as u32
}

/// Sends a packet on to its new destination as a router does, out of the device that received it.
/// `None`: it has made its last hop, or cannot be written; or the kernel would drop it, too: it is of a VLAN
/// without a device.
#[inline(always)]
pub(crate) fn send_on<F: Write>(skb: *mut __sk_buff) -> Option<Verdict> {
    // SAFETY: a field of the hook's context.
    if unsafe { (&raw const (*skb).vlan_present).read_volatile() } != 0 {
        cold_path();
        // SAFETY: a context of this hook.
        if vlan(skb) != 0 || unsafe { bpf_skb_vlan_pop(skb) } != 0 {
            return None;
        }
    }
    if !F::hop(skb) {
        return None;
    }
    // SAFETY: a context of this hook. Without parameters the kernel looks up the next hop (Linux 5.10,
    // b4ab31414970); without flags the helper always succeeds.
    unsafe { bpf_redirect_neigh(device(skb), core::ptr::null_mut(), 0, 0) };
    Some(Verdict::Redirect)
}

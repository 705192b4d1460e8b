//! Source NAT of connections from outside to endpoints of other nodes, where the device by which they
//! come also leads to the endpoint. Otherwise the kernel masquerades them ([`crate::outside`]).

use core::ptr::NonNull;

use aya_ebpf::bindings::{
    __sk_buff, BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
    bpf_fib_lookup as FibLookup,
};
use aya_ebpf::helpers::{bpf_fib_lookup, bpf_get_prandom_u32, bpf_redirect_neigh};
use topo_lb_common::address::SCTP;
use topo_lb_common::connection;
use topo_lb_common::snat::{Snat, source_port};

use crate::access::device;
use crate::family::{ConnectionOf, Family, V4, V6};
use crate::fast_path::FastPath;
use crate::four_tuple::{EntryFields, FourTuple};
use crate::maps::SNAT;
use crate::reply_filter::is_no_endpoint;
use crate::rewrite::Write;
use crate::transport::split_ports;
use crate::verdict::Verdict;

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

/// Chooses the source of a connection that the kernel would masquerade. `entry`: that of the client's
/// packets, which no packet uses yet.
#[inline(always)]
pub(crate) fn choose<F: Route>(skb: *mut __sk_buff, entry: NonNull<ConnectionOf<F>>, protocol: u8) {
    // SAFETY: a field of the hook's context.
    let is_tagged = unsafe { (&raw const (*skb).vlan_present).read_volatile() } != 0;
    let Some(snat) = SNAT.get_ptr(0) else { return };
    let (address, uplink) = F::own_fields(snat);
    // SAFETY: fields of an array's element. Only the agent writes them.
    let (address, uplink) = unsafe { (F::words(address.read_volatile()), uplink.read_volatile()) };
    // A packet with a tag belongs to another device.
    if uplink != device(skb) || is_tagged {
        return;
    }
    let fields = EntryFields::of(entry);
    let to = FourTuple::<F>::of_entry(entry);
    let kind = if leads_to::<F>(skb, protocol, address, to.destination) == Some(uplink) {
        // SAFETY: fields of a look-up's value.
        unsafe { (&raw mut (*entry.as_ptr()).source).write_volatile(F::bytes(address)) };
        // SCTP's CRC32c covers the ports.
        if protocol != SCTP {
            // SAFETY: as above; the helper has no preconditions.
            unsafe { fields.source_port.write_volatile(source_port(bpf_get_prandom_u32())) };
        }
        connection::SNAT
    } else {
        // The endpoint is on this node, although its slice does not say so: its answers pass here.
        0
    };
    // SAFETY: as above.
    unsafe { fields.kind.write_volatile(kind) };
}

/// The device to which the kernel would forward a packet.
#[inline(always)]
fn leads_to<F: Route>(
    skb: *mut __sk_buff,
    protocol: u8,
    source: F::Address,
    destination: F::Address,
) -> Option<u32> {
    // SAFETY: all zeros are a valid question.
    let mut question: FibLookup = unsafe { core::mem::zeroed() };
    question.family = F::NUMBER;
    question.l4_protocol = protocol;
    question.ifindex = device(skb);
    F::question(&mut question, source, destination);
    // SAFETY: a context of this hook, and a whole question.
    let answer =
        unsafe { bpf_fib_lookup(skb.cast(), &raw mut question, size_of::<FibLookup>() as i32, 0) };
    let knows = matches!(
        answer as u32,
        BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH | BPF_FIB_LKUP_RET_FRAG_NEEDED
    );
    if knows { Some(question.ifindex) } else { None }
}

/// `PACKET_OTHERHOST`, include/uapi/linux/if_packet.h: the frame's address is another host's.
const TO_ANOTHER_HOST: u32 = 3;

/// Sends a packet on to its new destination as a router does, out of the device that received it.
/// `None`: it has made its last hop, or cannot be written; or a switch has flooded it here, and the kernel
/// would drop it, too (`ip_rcv_core`, net/ipv4/ip_input.c).
#[inline(always)]
pub(crate) fn send_on<F: Write>(skb: *mut __sk_buff) -> Option<Verdict> {
    // SAFETY: a field of the hook's context.
    let packet_type = unsafe { (&raw const (*skb).pkt_type).read_volatile() };
    if packet_type == TO_ANOTHER_HOST || !F::hop(skb) {
        return None;
    }
    // SAFETY: a context of this hook. Without parameters the kernel looks up the next hop (Linux 5.10,
    // b4ab31414970); without flags the helper always succeeds.
    unsafe { bpf_redirect_neigh(device(skb), core::ptr::null_mut(), 0, 0) };
    Some(Verdict::Redirect)
}

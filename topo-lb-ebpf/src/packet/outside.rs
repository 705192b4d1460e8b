//! Clients outside of this node: their packets arrive by a device with an address of the node.
//!
//! They use the same steps as guests. The entry programs write into the packet's own state which
//! client it is of, because a step has no other argument for it. Without `--frontends all`
//! the verifier removes all of this: it knows the constant.

use aya_ebpf::bindings::__sk_buff;
use aya_ebpf::btf_maps::lpm_trie::Key;
use topo_lb_common::connection::OUTSIDE_DEVICE;
use topo_lb_common::sources::{DENIED, Source};

use crate::base::access;
use crate::base::family::{Family, FrontendOf, SourceOf, TupleOf};
use crate::base::maps::{MASQUERADE_MARK, RETURNS_DIRECTLY, SERVES_ALL_FRONTENDS};
use crate::decide::resolve::Asks;

/// The clients behind a device.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Clients {
    /// Guests of this node.
    Guests = 0,
    /// Clients outside of this node.
    Outside = 1,
    /// The same, and another node has sent their packet on, for which this one has an endpoint.
    Hopped = 2,
}

/// Records whose packet it is, for [`is_outside`]. `cb` belongs to the programs of one hook; the
/// kernel does not read it.
#[inline(always)]
pub(crate) fn enter(skb: *mut __sk_buff, clients: Clients) {
    if SERVES_ALL_FRONTENDS.load() != 0 {
        // SAFETY: a field of the hook's context.
        unsafe { (&raw mut (*skb).cb[0]).write_volatile(clients as u32) };
    }
}

/// Whether a packet is of a client outside of this node, or to one.
#[inline(always)]
pub(crate) fn is_outside(skb: *mut __sk_buff) -> bool {
    // SAFETY: a field of the hook's context.
    SERVES_ALL_FRONTENDS.load() != 0
        && unsafe { (&raw const (*skb).cb[0]).read_volatile() } != Clients::Guests as u32
}

/// Who asks for an endpoint by a packet.
#[inline(always)]
pub(crate) fn asks(skb: *mut __sk_buff) -> Asks {
    // SAFETY: a field of the hook's context.
    let clients = unsafe { (&raw const (*skb).cb[0]).read_volatile() };
    if !is_outside(skb) {
        Asks::Inside
    } else if RETURNS_DIRECTLY.load() != 0 && clients == Clients::Hopped as u32 {
        Asks::Hopped
    } else {
        Asks::Outside
    }
}

/// `PACKET_HOST`, include/uapi/linux/if_packet.h: the frame has the address of the device that received it.
const TO_THIS_HOST: u32 = 0;

/// Whether a frame has the address of another host, as a switch floods them, or of many hosts. The kernel
/// neither forwards such a packet (`ip_forward`, net/ipv4/ip_forward.c) nor gives it to a TCP socket.
///
/// Not for guests: at a port of a bridge, frames to the bridge are for another host.
#[inline(always)]
pub(crate) fn is_for_another_host(skb: *mut __sk_buff) -> bool {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw const (*skb).pkt_type).read_volatile() != TO_THIS_HOST }
}

/// The device in the keys of a packet's connection.
#[inline(always)]
pub(crate) fn client_device(skb: *mut __sk_buff) -> u32 {
    if is_outside(skb) { OUTSIDE_DEVICE } else { access::device(skb) }
}

/// Whether a connection is of a client outside of this node.
#[inline(always)]
pub(crate) fn is_of_outside<F: Family>(key: &TupleOf<F>) -> bool {
    SERVES_ALL_FRONTENDS.load() != 0 && key.device == OUTSIDE_DEVICE
}

/// Whether a client outside may not dial a frontend (`loadBalancerSourceRanges`).
#[inline(always)]
pub(crate) fn is_denied<F: Family>(frontend: &FrontendOf<F>, client: F::Address) -> bool {
    const BITS: u32 = u8::BITS;
    let source = Source {
        address: frontend.address,
        port: frontend.port,
        protocol: frontend.protocol,
        reserved: 0,
        client: F::bytes(client),
    };
    let key = Key::new(BITS * size_of::<SourceOf<F>>() as u32, source);
    F::sources().get(&key).is_some_and(|verdict| *verdict == DENIED)
}

/// The bit of a packet's `tc_index` that says that a program has translated it. The kernel uses that
/// field in a few disciplines of queues, and overwrites it where a later clsact filter answers
/// `TC_ACT_OK` (`tc_run`, net/core/dev.c). Cilium uses its lowest bits (bpf/lib/common.h).
const TRANSLATED: u32 = 1 << 15;

/// Records that a packet is translated: it may pass another uplink, such as a VLAN on this one.
#[inline(always)]
pub(crate) fn set_translated(skb: *mut __sk_buff) {
    // SAFETY: a field of the hook's context.
    unsafe {
        let index = &raw mut (*skb).tc_index;
        index.write_volatile(index.read_volatile() | TRANSLATED);
    }
}

/// Whether a program of another device has translated a packet.
#[inline(always)]
pub(crate) fn is_translated(skb: *mut __sk_buff) -> bool {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw const (*skb).tc_index).read_volatile() & TRANSLATED != 0 }
}

/// The bit of `tc_index` that says that a packet to a frontend is of no known connection.
const STRAY: u32 = 1 << 14;

/// Records that a packet of a client outside is of no known connection, and passes.
#[inline(always)]
pub(crate) fn set_stray(skb: *mut __sk_buff) {
    // SAFETY: a field of the hook's context.
    unsafe {
        let index = &raw mut (*skb).tc_index;
        index.write_volatile(index.read_volatile() | STRAY);
    }
}

/// Whether a packet has come from outside, with [`set_stray`], and leaves this node again.
#[inline(always)]
pub(crate) fn is_stray(skb: *mut __sk_buff) -> bool {
    // SAFETY: a field of the hook's context.
    is_outside(skb) && unsafe { (&raw const (*skb).tc_index).read_volatile() } & STRAY != 0
}

/// Marks a packet whose source the kernel has to replace with an address of this node.
#[inline(always)]
pub(crate) fn masquerade(skb: *mut __sk_buff) {
    // SAFETY: a field of the hook's context.
    unsafe {
        let mark = &raw mut (*skb).mark;
        mark.write_volatile(mark.read_volatile() | MASQUERADE_MARK.load());
    }
}

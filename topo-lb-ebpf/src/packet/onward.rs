//! Direct return: the way of a packet to another node, to which it goes as it came.
//!
//! The Ethernet addresses of peers say who has sent a packet, and who would get it ([`topo_lb_common::hop`]).
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use aya_ebpf::bindings::{
    __sk_buff, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS, bpf_fib_lookup as FibLookup,
    bpf_redir_neigh as NextHop,
};
use aya_ebpf::helpers::bpf_redirect_neigh;
use topo_lb_common::hop::Peer;
use topo_lb_common::packets::Outcome;

use crate::base::access::{device, load};
use crate::base::family::Family;
use crate::base::maps::{self, RETURNS_DIRECTLY, SNAT};
use crate::packet::outcomes::{Hook, count};
use crate::packet::outside::is_outside;
use crate::packet::rewrite::Write;
use crate::packet::snat::{self, Route, vlan};
use crate::packet::verdict::Verdict;

/// Offset of the sender's address in a frame.
const SENDER: u32 = 6;

/// Whether packets of this client may be sent on at all.
#[inline(always)]
pub(crate) fn may_be(skb: *mut __sk_buff) -> bool {
    RETURNS_DIRECTLY.load() != 0 && is_outside(skb)
}

/// The entry of `peers` of an Ethernet address; zero without one.
#[inline(always)]
pub(crate) fn peer<F: Family>(ethernet: [u8; 6]) -> u32 {
    let key = Peer { ethernet, version: if F::IS_V6 { 6 } else { 4 }, reserved: 0 };
    // SAFETY: one aligned word.
    maps::PEERS.get_ptr(&key).map_or(0, |value| unsafe { value.read_volatile() })
}

/// The address of a packet's sender; zeros if it cannot be read.
#[inline(always)]
pub(crate) fn sender(skb: *mut __sk_buff) -> [u8; 6] {
    load(skb, SENDER).unwrap_or_default()
}

/// Whether another node has sent a packet on, which has this `sender`: it has made its one hop.
#[inline(always)]
pub(crate) fn is_hopped<F: Family>(skb: *mut __sk_buff, sender: [u8; 6]) -> bool {
    may_be(skb) && peer::<F>(sender) != 0
}

/// The kernel's answer about the way to an endpoint, if that leads by the uplink by which a packet has come, and not back
/// to its `sender`: a router without a better route would send it here again. Without an address of the next hop's if the
/// neighbour is not known.
#[inline(always)]
pub(crate) fn way<F: Route>(
    skb: *mut __sk_buff,
    protocol: u8,
    endpoint: F::Address,
    sender: [u8; 6],
) -> Option<FibLookup> {
    let snat = SNAT.get_ptr(0)?;
    let (own, _) = F::own_fields(snat);
    // SAFETY: fields of an array's element. Only the agent writes them.
    let (own, uplink) =
        unsafe { (F::words(own.read_volatile()), (&raw const (*snat).direct).read_volatile()) };
    if uplink != device(skb) || vlan(skb) != 0 {
        return None;
    }
    let mut way = snat::no_question();
    let answer = snat::ask::<F>(skb, &mut way, protocol, own, endpoint);
    let is_way = matches!(answer, BPF_FIB_LKUP_RET_SUCCESS | BPF_FIB_LKUP_RET_NO_NEIGH);
    (is_way && way.ifindex == uplink && way.dmac != sender).then_some(way)
}

/// Sends a packet on towards an endpoint, if the route leads by the uplink. `None`: it may not, and is unchanged; or it
/// cannot be written.
#[inline(always)]
pub(crate) fn send_to<F: Route + Write>(
    skb: *mut __sk_buff,
    protocol: u8,
    endpoint: F::Address,
) -> Option<Verdict> {
    let sender = sender(skb);
    if is_hopped::<F>(skb, sender) {
        return None;
    }
    let way = way::<F>(skb, protocol, endpoint, sender)?;
    send_by::<F>(skb, &way)
}

/// Sends a packet on by a way. `None`: it has made its last hop, or cannot be written.
#[inline(always)]
pub(crate) fn send_by<F: Write>(skb: *mut __sk_buff, way: &FibLookup) -> Option<Verdict> {
    if !F::hop(skb) {
        return None;
    }
    // SAFETY: fields of unions of plain words, and all zeros are a valid value.
    let mut next = unsafe {
        let mut next: NextHop = core::mem::zeroed();
        next.nh_family = way.family.into();
        next.__bindgen_anon_1.ipv6_nh = way.__bindgen_anon_4.ipv6_dst;
        next
    };
    // SAFETY: a context of this hook, and whole parameters; without flags the helper always succeeds.
    unsafe { bpf_redirect_neigh(device(skb), &raw mut next, size_of::<NextHop>() as i32, 0) };
    count(Hook::Ingress, Outcome::SentOn);
    Some(Verdict::Redirect)
}

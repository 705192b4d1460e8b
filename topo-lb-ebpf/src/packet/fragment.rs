//! Fragmented datagrams: later fragments have no ports, so they follow the first one.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use core::sync::atomic::{Ordering, compiler_fence};

use aya_ebpf::bindings::{__sk_buff, BPF_ANY};
use topo_lb_common::connection::{
    FRAGMENT_LIFETIME, Fragment, FragmentPlace, HOP, MASQUERADE, TURNS, Translation,
};
use topo_lb_common::packets::Outcome;

use crate::base::access::{ETHERNET, device};
use crate::base::clock::now;
use crate::base::family::Family;
use crate::base::header::{Header, PacketKind, Read};
use crate::base::maps::SEED;
use crate::base::words::are_same;
use crate::packet::forward::forward;
use crate::packet::four_tuple::FourTuple;
use crate::packet::onward;
use crate::packet::outcomes::{Hook, count, dropped, next, unmatched};
use crate::packet::outside::is_outside;
use crate::packet::rewrite::{Write, readdress};
use crate::packet::snat::Route;
use crate::packet::verdict::Verdict;

/// A fragment's datagram.
#[inline(always)]
fn datagram<F: Family>(header: &Header<F>) -> Fragment<F::Bytes> {
    Fragment {
        source: F::bytes(header.source),
        destination: F::bytes(header.destination),
        identification: header.identification,
        protocol: header.protocol.into(),
    }
}

/// The place of a fragment's datagram among those of the device, or of all clients outside.
#[inline(always)]
fn place<F: Family>(skb: *mut __sk_buff, header: &Header<F>, hook: Hook) -> FragmentPlace {
    if is_outside(skb) {
        let [sender, _] = F::halves(header.source);
        FragmentPlace::outside(SEED.load(), hook as u8, sender, header.identification)
    } else {
        FragmentPlace::of(device(skb), hook as u8, header.identification)
    }
}

/// Stores the translation of a first fragment for the later ones. `kind` is the connection's.
#[inline(always)]
pub(crate) fn remember<F: Family>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    to: &FourTuple<F>,
    kind: u8,
    now: u64,
    hook: Hook,
) {
    let translation = Translation {
        first_seen: now,
        datagram: datagram(header),
        source: F::bytes(to.source),
        destination: F::bytes(to.destination),
        kind: u32::from(kind & (TURNS | MASQUERADE | HOP)),
        reserved: 0,
    };
    let _ = F::fragments().insert(&place(skb, header, hook), &translation, BPF_ANY.into());
}

/// Leaves a packet and its later fragments untouched.
#[inline(always)]
pub(crate) fn leave<F: Family>(header: &Header<F>, hook: Hook) -> Verdict {
    if header.kind == PacketKind::First {
        Verdict::LeaveFragments
    } else {
        next(hook, Outcome::Untouched)
    }
}

/// Forgets the translation of a datagram that had the same number and hosts a moment ago. Another datagram
/// keeps its place.
#[inline(always)]
pub(crate) fn forget<F: Read>(skb: *mut __sk_buff, hook: Hook) -> Verdict {
    let header = F::header(skb, ETHERNET, false);
    let place = place(skb, &header, hook);
    if let Some(found) = F::fragments().get_ptr(&place)
        // SAFETY: a look-up's pointer; both are whole words without padding.
        && unsafe { are_same(&raw const (*found).datagram, &datagram(&header)) }
    {
        let _ = F::fragments().remove(&place);
    }
    next(hook, Outcome::Untouched)
}

/// Translates a later fragment like the first one. Without an entry of the first one, the
/// fragment's Service is unknown, and it stays untouched.
#[inline(always)]
pub(crate) fn translate<F: Write + Route>(
    skb: *mut __sk_buff,
    header: &Header<F>,
    hook: Hook,
) -> Verdict {
    let Some(found) = F::fragments().get_ptr(&place(skb, header, hook)) else {
        return unmatched::<F>(hook, header.destination);
    };
    // SAFETY: a look-up's pointer.
    let (first_seen, addresses, kind) = unsafe {
        let addresses = (F::words((*found).source), F::words((*found).destination));
        ((*found).first_seen, addresses, (*found).kind as u8)
    };
    // Checked after reading: the place may be another datagram's, now or from the beginning.
    compiler_fence(Ordering::Acquire);
    // SAFETY: as above; both are whole words without padding.
    let is_its = unsafe { are_same(&raw const (*found).datagram, &datagram(header)) };
    if !is_its || now().saturating_sub(first_seen) > FRAGMENT_LIFETIME {
        return unmatched::<F>(hook, header.destination);
    }
    if kind & HOP != 0 {
        let (_, endpoint) = addresses;
        let sent = onward::send_to::<F>(skb, header.protocol, endpoint);
        return sent.unwrap_or_else(|| dropped(hook));
    }
    if !readdress(skb, header, addresses) {
        return dropped(hook);
    }
    count(hook, Outcome::Translated);
    forward::<F>(skb, kind, hook)
}

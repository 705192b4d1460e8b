//! What is noted of a decision in a packet's own state.

use aya_ebpf::bindings::__sk_buff;
use topo_lb_common::trace::{Hook, Outcome};

use crate::base::family::Family;
use crate::decide::decision::Words;
use crate::decide::resolve::Resolved;
use crate::packet::outside::is_outside;

/// Notes that nothing is decided for a packet.
#[inline(always)]
pub(crate) fn begin(skb: *mut __sk_buff) {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw mut (*skb).cb[1]).write_volatile(0) }
}

/// Notes in a packet's own state what was decided, for [`of_packet`](crate::packet::trace::of_packet): the
/// steps have no room on the stack for another function. The endpoint is in the new entry.
#[inline(always)]
pub(crate) fn note<F: Family>(skb: *mut __sk_buff, resolved: &Resolved<F>, outcome: Outcome) {
    let hook = if is_outside(skb) { Hook::Outside } else { Hook::Guest };
    let Words { bytes, .. } = Words::of(resolved, hook, outcome);
    // SAFETY: fields of the hook's context.
    unsafe {
        (&raw mut (*skb).cb[1]).write_volatile(bytes);
        (&raw mut (*skb).cb[2]).write_volatile(resolved.service);
    }
}

/// Notes that a packet is dropped although an endpoint was chosen.
#[inline(always)]
pub(crate) fn drop(skb: *mut __sk_buff) {
    // As in `Words`.
    const MASK: u32 = u32::from_ne_bytes([0, u8::MAX, 0, 0]);
    const DROPPED: u32 = u32::from_ne_bytes([0, Outcome::Dropped as u8, 0, 0]);
    // SAFETY: a field of the hook's context.
    unsafe {
        let noted = &raw mut (*skb).cb[1];
        noted.write_volatile(noted.read_volatile() & !MASK | DROPPED);
    }
}

/// Whether a decision is noted. No hook of packets is zero.
#[inline(always)]
pub(crate) fn is_noted(skb: *mut __sk_buff) -> bool {
    // SAFETY: a field of the hook's context.
    unsafe { (&raw const (*skb).cb[1]).read_volatile() != 0 }
}

//! Datagrams that this node has sent from a frontend's address and port, by a process with a port that is a node
//! port, too, or in place of a pod that it masquerades: their answers are not for the Service.
//!
//! Like connection tracking, the programs remember whom such a datagram was sent to: an answer comes from there.
//! A socket that only listens at the port gets nothing that way, as before.
#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is passed by value is copied, on a stack of 512 bytes"
)]

use aya_ebpf::bindings::BPF_ANY;
use topo_lb_common::address::UDP;
use topo_lb_common::connection::{ANSWERED, TICK, lifetime};

use crate::base::family::{Family, TupleOf};
use crate::base::maps::SERVES_ALL_FRONTENDS;
use crate::decide::frontend_filter::has_bit;
use crate::packet::connection::find;
use crate::packet::four_tuple::FourTuple;

/// Whether a packet that leaves may have a frontend as its source, and may be answered. `port` in host order.
#[inline(always)]
pub(crate) fn may_be<F: Family>(protocol: u8, source: F::Address, port: u16) -> bool {
    SERVES_ALL_FRONTENDS.load() != 0 && protocol == UDP && has_bit::<F>(source, port)
}

/// Remembers a datagram that leaves with a frontend as its source. `answer`: the key of its answers, as those of
/// a client. An answer of the Service, which another device's program has translated, is none.
#[inline(always)]
pub(crate) fn remember<F: Family>(answer: &TupleOf<F>, now: u64) {
    if is_own::<F>(answer, now) {
        return;
    }
    let says = FourTuple::<F>::of_key(answer);
    let frontend = F::frontend(says.destination, says.destination_port, answer.protocol);
    if F::services().get_ptr(&frontend).is_some() && find::<F>(answer).is_none() {
        let _ = F::own().insert(answer, &now, BPF_ANY.into());
    }
}

/// Whether a datagram with this key answers one of this node. Then the entry is used.
#[inline(always)]
pub(crate) fn is_own<F: Family>(key: &TupleOf<F>, now: u64) -> bool {
    let Some(last_used) = F::own().get_ptr_mut(key) else { return false };
    // SAFETY: a look-up's value.
    let before = unsafe { last_used.read_volatile() };
    if now.wrapping_sub(before).cast_signed() > lifetime(UDP, ANSWERED).cast_signed() {
        return false;
    }
    if (before ^ now) >> TICK != 0 {
        // SAFETY: as above; another CPU writes a time that is close to this one.
        unsafe { last_used.write_volatile(now) };
    }
    true
}

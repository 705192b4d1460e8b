//! `packets`: what became of the packets of each hook.

use topo_lb_common::connection::Packets;

use crate::maps::PACKETS;

/// A tc hook: the index of its totals.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hook {
    Ingress = 0,
    Egress = 1,
}

/// Counts a packet where `which` says.
#[inline(always)]
pub(crate) fn count(hook: Hook, which: impl FnOnce(&mut Packets) -> &mut u64) {
    if let Some(packets) = PACKETS.get_ptr_mut(hook as u32) {
        // SAFETY: this CPU's element; a lost increment is the worst.
        unsafe { *which(&mut *packets) += 1 };
    }
}

//! `answerers`: which endpoints may have something to answer. By it most packets on their way out
//! need no look-up in the connection table.

use topo_lb_common::answerers::{WHOLE, place};

use crate::glance::{Glance, Glimpse};
use crate::maps::ANSWERERS;

/// Whether a packet surely answers none of the connections that are translated.
#[inline(always)]
pub(crate) fn is_foreign<F: Glance>(packet: &Glimpse<F>) -> bool {
    let place = place(F::folded(packet.source), packet.source_port());
    !is_marked(place) && is_marked(WHOLE)
}

#[inline(always)]
fn is_marked(place: u32) -> bool {
    // SAFETY: one aligned word of an array's element.
    ANSWERERS.get_ptr(place).is_none_or(|mark| unsafe { mark.read_volatile() } != 0)
}

/// Notes that an endpoint has a connection to answer, whose entry is there already: the agent, which
/// makes the marks anew from the entries, then sees one or the other. `port` in host order.
#[inline(always)]
pub(crate) fn expect<F: Glance>(address: F::Address, port: u16) {
    if let Some(mark) = ANSWERERS.get_ptr_mut(place(F::folded(address), port)) {
        // SAFETY: as above; every CPU writes the same.
        unsafe { mark.write_volatile(1) };
    }
}

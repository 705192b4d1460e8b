//! The test that most addresses and ports fail: whether they can be a frontend. It takes one look-up
//! in an array.

use topo_lb_common::frontend_filter::{ANY_OUTSIDE, FrontendBit, bit};
use topo_lb_common::range::Range;

use crate::base::family::Family;
use crate::base::maps::{FRONTENDS, RANGE, SERVES_ALL_FRONTENDS};
use crate::base::words::words;

/// Whether an address and a port can be a frontend. If not, no look-up is needed. `port` in host
/// order.
#[inline(always)]
pub(crate) fn may_be_frontend<F: Family>(address: F::Address, port: u16) -> bool {
    if SERVES_ALL_FRONTENDS.load() != 0 {
        has_bit::<F>(address, port)
    } else {
        in_range::<F>(address)
    }
}

/// Whether a frontend has the bit of an address and a port (host order).
#[inline(always)]
pub(crate) fn has_bit<F: Family>(address: F::Address, port: u16) -> bool {
    let FrontendBit { word, mask } = bit(F::folded(address), port);
    // SAFETY: an array's element, one aligned word.
    FRONTENDS.get_ptr(word).is_some_and(|bits| unsafe { bits.read_volatile() } & mask != 0)
}

/// Whether a frontend may have a record for clients outside alone.
#[inline(always)]
pub(crate) fn has_outside() -> bool {
    let FrontendBit { word, mask } = ANY_OUTSIDE;
    // SAFETY: an array's element, one aligned word.
    FRONTENDS.get_ptr(word).is_some_and(|bits| unsafe { bits.read_volatile() } & mask != 0)
}

/// Whether a frontend can have this address.
#[inline(always)]
pub(crate) fn in_range<F: Family>(address: F::Address) -> bool {
    let Some(range) = RANGE.get_ptr(0) else {
        return false;
    };
    // SAFETY: an array's element; each half is one aligned word.
    let range: Range = unsafe { words(range) };
    F::in_range(range, address)
}

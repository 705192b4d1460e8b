//! The reply filter: a packet from or to an unmarked address and port needs no look-up in the
//! connection table.

use topo_lb_common::reply_filter::{ReplyFilterEntry, ReplyFilterPlace, direct_place, place};

use crate::base::maps::REPLY_FILTER;
use crate::packet::fast_path::FastPath;

/// Whether certainly no translated connection has this endpoint. `port` in host order.
#[inline(always)]
pub(crate) fn is_no_endpoint<F: FastPath>(address: F::Address, port: u16) -> bool {
    is_unmarked(place(F::folded(address), port))
}

/// Whether certainly no direct connection is translated to this endpoint. `port` in host order.
#[inline(always)]
pub(crate) fn is_none_direct<F: FastPath>(address: F::Address, port: u16) -> bool {
    is_unmarked(direct_place(F::folded(address), port))
}

#[inline(always)]
fn is_unmarked(ReplyFilterPlace { entry, mark }: ReplyFilterPlace) -> bool {
    REPLY_FILTER.get_ptr_mut(entry).is_some_and(|entry| {
        // SAFETY: an array's element; each field is read separately.
        unsafe {
            field(entry, mark).read_volatile() == 0
                && (&raw const (*entry).complete).read_volatile() != 0
        }
    })
}

/// A mark, in place.
///
/// # Safety
/// `entry` is an element of the array, and `mark` is a [`ReplyFilterPlace`]'s.
#[inline(always)]
unsafe fn field(entry: *mut ReplyFilterEntry, mark: u32) -> *mut u8 {
    // SAFETY: as the caller says.
    unsafe { (&raw mut (*entry).marks).cast::<u8>().add(mark as usize) }
}

/// Marks an endpoint that has a connection. The connection's entry is written before the mark, so
/// an agent that rebuilds the marks from the entries misses none. `port` in host order.
#[inline(always)]
pub(crate) fn expect<F: FastPath>(address: F::Address, port: u16) {
    set(place(F::folded(address), port));
}

/// Marks an endpoint that has a direct connection, as [`expect`] does.
#[inline(always)]
pub(crate) fn expect_direct<F: FastPath>(address: F::Address, port: u16) {
    set(direct_place(F::folded(address), port));
}

#[inline(always)]
fn set(ReplyFilterPlace { entry, mark }: ReplyFilterPlace) {
    if let Some(entry) = REPLY_FILTER.get_ptr_mut(entry) {
        // SAFETY: as above; every CPU writes the same.
        unsafe { field(entry, mark).write_volatile(1) };
    }
}

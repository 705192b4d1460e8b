//! Finds the record of a frontend.

use core::ptr::NonNull;

use topo_lb_common::address::{Frontend, STEERED};

use crate::base::family::{Family, FrontendOf, RecordFields};
use crate::base::maps::TORN;
use crate::base::words::words;

/// Look-ups before the connection is refused.
const ATTEMPTS: u32 = 3;

/// The result of looking a frontend up.
pub(crate) enum Found<F: Family> {
    /// The frontend does not exist.
    Absent,
    /// Each look-up found the record of another frontend.
    Torn,
    /// The frontend's record, which does not change until the program ends.
    Record(NonNull<F::Record>),
}

/// Looks a frontend up. With `clients`, which is added to its protocol, the frontend's record for those clients comes
/// first.
///
/// The agent fills a record before it publishes its index, and reuses a replaced one only after all
/// programs that could read its index have ended. The address of the record depends on the index, so
/// every CPU sees the record as it was when the index was published. But the kernel may reuse the
/// element of the hash for another frontend before the index is read: so the record must be this
/// frontend's.
#[inline(always)]
pub(crate) fn find<F: Family>(frontend: &FrontendOf<F>, clients: u8) -> Found<F> {
    find_noting::<F>(frontend, clients, || ())
}

/// As [`find`]; calls `again` for each record of another frontend.
#[inline(always)]
pub(crate) fn find_noting<F: Family>(
    frontend: &FrontendOf<F>,
    clients: u8,
    mut again: impl FnMut(),
) -> Found<F> {
    let special = Frontend { protocol: frontend.protocol | clients, ..*frontend };
    for _ in 0..ATTEMPTS {
        let own = if clients != 0 { look_up::<F>(&special) } else { None };
        let key = if own.is_some() { &special } else { frontend };
        let Some(index) = own.or_else(|| look_up::<F>(frontend)) else {
            return Found::Absent;
        };
        if let Some(record) = read::<F>(index, key) {
            return Found::Record(record);
        }
        again();
    }
    count_torn();
    Found::Torn
}

/// The record of this very frontend by one look-up.
#[inline(always)]
pub(crate) fn peek<F: Family>(frontend: &FrontendOf<F>) -> Option<NonNull<F::Record>> {
    read::<F>(F::services().get_ptr(frontend)?, frontend)
}

/// The record with this index, if it is that of a frontend.
#[inline(always)]
fn read<F: Family>(index: *const u32, key: &FrontendOf<F>) -> Option<NonNull<F::Record>> {
    // SAFETY: one aligned word.
    let index = unsafe { index.read_volatile() };
    NonNull::new(F::records().get_ptr_mut(index)?).filter(|record| is_of::<F>(*record, key))
}

/// What a steered process dials: the frontend for steered Pods alone, if there is one.
#[inline(always)]
pub(crate) fn for_steered<F: Family>(frontend: FrontendOf<F>) -> FrontendOf<F> {
    let steered = Frontend { protocol: frontend.protocol | STEERED, ..frontend };
    if look_up::<F>(&steered).is_some() { steered } else { frontend }
}

/// The index of a frontend's record.
///
/// To replace an element, the kernel adds the new one at the head of its chain, and then removes the old one
/// further down (`htab_map_update_elem`). A look-up that is between both at that moment finds neither. Only
/// addresses inside `range` that are no frontend pay for the second look-up.
#[inline(always)]
fn look_up<F: Family>(key: &FrontendOf<F>) -> Option<*const u32> {
    F::services().get_ptr(key).or_else(|| F::services().get_ptr(key))
}

/// Whether there is such a frontend.
#[inline(always)]
pub(crate) fn is_there<F: Family>(frontend: &FrontendOf<F>) -> bool {
    look_up::<F>(frontend).is_some()
}

/// Whether a record is this frontend's.
#[inline(always)]
fn is_of<F: Family>(record: NonNull<F::Record>, frontend: &FrontendOf<F>) -> bool {
    /// The port and the protocol, without the byte after them.
    const PORT_AND_PROTOCOL: u32 = u32::from_ne_bytes([255, 255, 255, 0]);
    let fields = RecordFields::<F>::of(record);
    // SAFETY: fields of an array's element, at multiples of four bytes; `Frontend` has no padding.
    unsafe {
        let port = (&raw const frontend.port).cast::<u32>().read();
        let address = F::words(words(fields.address));
        (fields.port.cast::<u32>().read_volatile() ^ port) & PORT_AND_PROTOCOL == 0
            && address == F::words(frontend.address)
    }
}

/// Counts a connection that is refused because its record was not found.
#[inline(always)]
fn count_torn() {
    if let Some(torn) = TORN.get_ptr_mut(0) {
        // SAFETY: this CPU's element; at worst an increment is lost.
        unsafe { *torn += 1 };
    }
}

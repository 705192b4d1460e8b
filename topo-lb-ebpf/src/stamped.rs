//! Reads values that the agent may be replacing at the same time.

use core::mem::MaybeUninit;

use crate::family::{Family, Fields, FrontendOf};
use crate::maps::TORN;

/// Attempts before the connection is refused. In 102 million reads against a busy writer, none
/// needed a second attempt.
const ATTEMPTS: u32 = 3;

/// The result of reading a service value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The frontend does not exist.
    Absent,
    /// The value was torn in all attempts.
    Torn,
    /// The value is from one write.
    Complete,
}

/// A service value as read. Without [`Found::Complete`], generation and value are zero: the
/// verifier checks unused values, too, and requires them to be initialised.
pub(crate) struct Snapshot<T> {
    pub(crate) found: Found,
    /// Number of the write.
    pub(crate) generation: u32,
    pub(crate) value: T,
}

/// Looks a frontend up and reads from its value what `body` reads.
///
/// The writer stores the head first and the tail last. A reader that reads the tail first and the
/// head last sees the same generation at both only if all data between is from that write. The
/// frontend in the value shows whether the kernel reused the element for another key meanwhile, so
/// each attempt looks up again.
#[inline(always)]
pub(crate) fn service<F: Family, T: Default>(
    frontend: &FrontendOf<F>,
    body: impl Fn(&Fields<F>) -> T,
) -> Snapshot<T> {
    let nothing = |found| Snapshot { found, generation: 0, value: T::default() };
    for _ in 0..ATTEMPTS {
        // To replace an element, the kernel adds the new one at the head of its chain, and then
        // removes the old one further down (`htab_map_update_elem`). A look-up that is between both
        // at that moment finds neither. Only addresses inside `range` that are no frontend pay for
        // the second look-up.
        let look_up = || F::services().get_ptr(frontend);
        let Some(value) = look_up().or_else(look_up) else {
            return nothing(Found::Absent);
        };
        // SAFETY: a look-up's pointer points to a complete value, and stays readable until the
        // program ends. The reads are volatile: they stay in this order.
        unsafe {
            let fields = F::fields(value);
            let generation = fields.generation_tail.read_volatile();
            let value = body(&fields);
            let owner = words(fields.frontend);
            let head = fields.generation.read_volatile();
            if head == generation && same(&owner, frontend) {
                return Snapshot { found: Found::Complete, generation, value };
            }
        }
    }
    count_torn();
    nothing(Found::Torn)
}

/// Counts a failed read. A torn value does not show which Service it belongs to.
#[inline(always)]
fn count_torn() {
    if let Some(torn) = TORN.get_ptr_mut(0) {
        // SAFETY: this CPU's element; at worst an increment is lost.
        unsafe { *torn += 1 };
    }
}

/// Copies a value out of a map: in one load if it is eight aligned bytes, else word by word.
///
/// # Safety
/// `from` points to a complete value inside a map, at a multiple of four bytes; the size of `T` is
/// a multiple of four.
#[inline(always)]
pub(crate) unsafe fn words<T: Copy>(from: *const T) -> T {
    const { assert!(size_of::<T>().is_multiple_of(4)) };
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the caller's, and every byte of `value` is written.
    unsafe {
        if align_of::<T>() == 8 {
            let (from, to) = (from.cast::<u64>(), value.as_mut_ptr().cast::<u64>());
            let mut index = 0;
            while index < size_of::<T>() / 8 {
                to.add(index).write(from.add(index).read_volatile());
                index += 1;
            }
        } else {
            let (from, to) = (from.cast::<u32>(), value.as_mut_ptr().cast::<u32>());
            let mut index = 0;
            while index < size_of::<T>() / 4 {
                to.add(index).write_unaligned(from.add(index).read_volatile());
                index += 1;
            }
        }
        value.assume_init()
    }
}

/// Whether two plain values are equal byte by byte, compared in words.
#[inline(always)]
pub(crate) fn same<T: Copy>(one: &T, other: &T) -> bool {
    const { assert!(size_of::<T>().is_multiple_of(4)) };
    let one = core::ptr::from_ref(one).cast::<u32>();
    let other = core::ptr::from_ref(other).cast::<u32>();
    let mut differ = 0;
    let mut index = 0;
    while index < size_of::<T>() / 4 {
        // SAFETY: within the values; layouts shared with the agent have no padding.
        unsafe { differ |= one.add(index).read_unaligned() ^ other.add(index).read_unaligned() };
        index += 1;
    }
    differ == 0
}

//! Copies and compares values of maps word by word.

use core::mem::MaybeUninit;

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

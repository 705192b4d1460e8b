//! Copies and compares values of maps word by word.

use core::mem::MaybeUninit;
use core::ptr::from_ref;

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

/// Whether a value in a map has the same bytes as another, compared in words.
///
/// # Safety
/// `stored` points to a complete value inside a map, at a multiple of four bytes; `T` consists of whole
/// words, without padding.
#[inline(always)]
pub(crate) unsafe fn are_same<T>(stored: *const T, wanted: &T) -> bool {
    const { assert!(size_of::<T>().is_multiple_of(4)) };
    let (stored, wanted) = (stored.cast::<u32>(), from_ref(wanted).cast::<u32>());
    let mut difference = 0;
    let mut word = 0;
    while word < size_of::<T>() / 4 {
        // SAFETY: within both values.
        unsafe {
            difference |= stored.add(word).read_volatile() ^ wanted.add(word).read_unaligned()
        };
        word += 1;
    }
    difference == 0
}

//! Atomic additions. `core` has none for this target.

use core::arch::asm;

/// Adds to a word of a map. The instruction is as old as BPF.
///
/// # Safety
/// `word` is an aligned word inside a map's value, to which all writers add atomically.
#[inline(always)]
pub(crate) unsafe fn add(word: *mut u64, amount: u64) {
    // SAFETY: the caller's.
    unsafe {
        asm!("lock *(u64 *)({word} + 0) += {amount}", word = in(reg) word, amount = in(reg) amount)
    };
}

//! Atomic additions. `core` has none for this target.

use core::arch::asm;

/// Sets a word to `new` if it is `old`; returns what it was. Linux 5.12 (5ffa25502b5a, "bpf: Add
/// instructions for atomic_[cmp]xchg").
///
/// # Safety
/// `word` is an aligned word inside a map's value, to which all writers write atomically.
#[inline(always)]
pub(crate) unsafe fn compare_exchange(word: *mut u64, old: u64, new: u64) -> u64 {
    let found;
    // SAFETY: the caller's. The instruction compares with r0, and leaves there what it found.
    unsafe {
        asm!(
            "r0 = cmpxchg_64({word} + 0, r0, {new})",
            word = in(reg) word, new = in(reg) new, inout("r0") old => found,
        );
    }
    found
}

/// As [`add`], to half a word.
///
/// # Safety
/// `half` is aligned and inside a map's value; all writers add atomically, or overwrite.
#[inline(always)]
pub(crate) unsafe fn add_half(half: *mut u32, amount: u32) {
    // SAFETY: the caller's.
    unsafe {
        asm!("lock *(u32 *)({half} + 0) += {amount}", half = in(reg) half, amount = in(reg) amount)
    };
}

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

//! The time: nanoseconds of `CLOCK_MONOTONIC`, which does not step.

use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::helpers::generated::bpf_ktime_get_coarse_ns;

use crate::base::maps::HAS_COARSE_CLOCK;

/// The time at the kernel's last tick, some milliseconds ago. Lifetimes here are seconds, and
/// reading the clock itself takes as long as a look-up of a connection.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // SAFETY: the helpers have no preconditions.
    unsafe {
        if HAS_COARSE_CLOCK.load() != 0 { bpf_ktime_get_coarse_ns() } else { bpf_ktime_get_ns() }
    }
}

//! Exclusion: connections of processes in excluded Pods stay untouched.

use aya_ebpf::helpers::bpf_get_current_ancestor_cgroup_id;
use topo_lb_common::exclusion::{ExcludedKey, Levels, MOST_LEVELS};

use crate::base::maps::{EXCLUDED, EXCLUSION, HAS_EXCLUSIONS};
use crate::base::words::words;

/// Whether the calling process is excluded. Without exclusions, the verifier removes the call.
#[inline(always)]
pub(crate) fn applies() -> bool {
    HAS_EXCLUSIONS.load() != 0 && is_excluded()
}

/// Whether the process is in an excluded Pod: its cgroup is the Pod's, or below it. These hooks
/// have the helper since Linux 5.7 (0f09abd105da).
#[inline(never)]
fn is_excluded() -> bool {
    let Some(levels) = EXCLUSION.get_ptr(0) else {
        return false;
    };
    // SAFETY: an array's element. A torn value has too many or too few levels, as an older one may.
    let Levels { first, count } = unsafe { words(levels) };
    let mut step = 0;
    while step < MOST_LEVELS && step < count {
        // SAFETY: the helper has no preconditions.
        let cgroup = unsafe { bpf_get_current_ancestor_cgroup_id(first.wrapping_add(step) as i32) };
        // The process's cgroup is above this level.
        if cgroup == 0 {
            return false;
        }
        if EXCLUDED.get_ptr(ExcludedKey { cgroup }).is_some() {
            return true;
        }
        step += 1;
    }
    false
}

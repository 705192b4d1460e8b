//! Pods whose connections are treated in another way than all others.

use aya_ebpf::helpers::bpf_get_current_ancestor_cgroup_id;
use topo_lb_common::exclusion::{ExcludedKey, Levels, MOST_LEVELS, Treatment};

use crate::base::maps::{EXCLUDED, EXCLUSION, HAS_EXCLUSIONS};
use crate::base::words::words;

/// How connections of the calling process are treated; `None`: as all others. Without flags that name such
/// Pods, the verifier removes the call.
#[inline(always)]
pub(crate) fn treatment() -> Option<Treatment> {
    if HAS_EXCLUSIONS.load() != 0 { of_ancestors() } else { None }
}

/// The treatment of the Pod that the process is in: its cgroup is the Pod's, or below it. These hooks
/// have the helper since Linux 5.7 (0f09abd105da).
#[inline(never)]
fn of_ancestors() -> Option<Treatment> {
    // SAFETY: an array's element. A torn value has too many or too few levels, as an older one may.
    let Levels { first, count } = unsafe { words(EXCLUSION.get_ptr(0)?) };
    let mut step = 0;
    while step < MOST_LEVELS && step < count {
        // SAFETY: the helper has no preconditions.
        let cgroup = unsafe { bpf_get_current_ancestor_cgroup_id(first.wrapping_add(step) as i32) };
        // The process's cgroup is above this level.
        if cgroup == 0 {
            return None;
        }
        if let Some(found) = EXCLUDED.get_ptr(ExcludedKey { cgroup }) {
            // SAFETY: an element of the map, one aligned word.
            return Some(unsafe { words(found) }.treatment());
        }
        step += 1;
    }
    None
}

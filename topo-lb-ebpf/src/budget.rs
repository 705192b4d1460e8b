//! What a device may still do: it cannot use up what the clients of other devices need. Clients outside
//! of this node share devices, so each has an entry like a device's.

use aya_ebpf::bindings::BPF_NOEXIST;
use topo_lb_common::device::{Device, OPENINGS, REFUSALS, outside};

use crate::family::{Family, TupleOf};
use crate::maps::{DEVICES, QUOTA};
use crate::outside::is_of_outside;

/// The key in `devices` of the client of a connection. `key`: that of the client's packets.
#[inline(always)]
pub(crate) fn of<F: Family>(key: &TupleOf<F>) -> u32 {
    if !is_of_outside::<F>(key) {
        return key.device;
    }
    outside(F::folded(F::words(key.source)))
}

/// The entry of a device; a new one has full buckets.
#[inline(always)]
fn entry(device: u32) -> Option<*mut Device> {
    DEVICES.get_ptr_mut(device).or_else(|| {
        let _ = DEVICES.insert(device, Device::default(), BPF_NOEXIST.into());
        DEVICES.get_ptr_mut(device)
    })
}

/// Whether a client of the device may open another connection at `now`.
#[inline(always)]
pub(crate) fn may_open(device: u32, now: u64) -> bool {
    let (Some(entry), Some(quota)) = (entry(device), QUOTA.get_ptr(0)) else {
        return false;
    };
    // SAFETY: look-ups' pointers; at worst two CPUs take one token together.
    unsafe { (*quota).allows((*entry).connections, now) && (*entry).openings.take(OPENINGS, now) }
}

/// Whether no connection may be moved to the established ones at `now`.
#[inline(always)]
pub(crate) fn keeps_half_open(now: u64) -> bool {
    // SAFETY: a look-up's pointer.
    QUOTA.get_ptr(0).is_some_and(|quota| unsafe { (*quota).keeps_half_open(now) })
}

/// A connection of the device is established, and perhaps answered by that ([`answered`]).
#[inline(always)]
pub(crate) fn established(device: u32, is_answered: bool) {
    if let Some(entry) = DEVICES.get_ptr_mut(device) {
        // SAFETY: as above; at worst two CPUs count one connection together.
        unsafe {
            (*entry).connections += 1;
            if is_answered {
                (*entry).openings.give_back(OPENINGS);
            }
        }
    }
}

/// A connection of the device was answered: it does not count any more.
#[inline(always)]
pub(crate) fn answered(device: u32) {
    if let Some(entry) = DEVICES.get_ptr_mut(device) {
        // SAFETY: as above.
        unsafe { (*entry).openings.give_back(OPENINGS) };
    }
}

/// Whether another refused packet of the device may be answered at `now`.
#[inline(always)]
pub(crate) fn may_refuse(device: u32, now: u64) -> bool {
    // SAFETY: as above.
    entry(device).is_some_and(|entry| unsafe { (*entry).refusals.take(REFUSALS, now) })
}

//! Filters of a clsact queueing discipline: ours and foreign ones.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use aya::programs::tc::{SchedClassifierLink, TcHandle};
use tracing::warn;

use super::filters::{self, Filter};
use super::mark::Mark;
use crate::datapath::direction::{Direction, Role};
use crate::datapath::pin::{AttachMode, Pin};
use crate::device::{self, Device};
use crate::netlink::Netlink;

/// Handle of our filters: a number that others do not use by accident.
pub(crate) const HANDLE: TcHandle = TcHandle::new(0, 0x7470);
const HANDLE_NUMBER: u32 = 0x7470;

/// Our filter on a device, whether it exists or not.
pub(crate) fn filter(device: &str, direction: Direction) -> io::Result<SchedClassifierLink> {
    let (attach_type, priority) = (direction.attach_type(), priority(direction));
    SchedClassifierLink::attached(device, attach_type, priority, HANDLE, None)
}

/// Removes our filter from a device.
pub(crate) fn remove(device: &str, direction: Direction) -> io::Result<()> {
    use aya::programs::links::Link as _;
    filter(device, direction)?.detach().map_err(io::Error::other)
}

/// Marks that the device had no clsact queueing discipline before ours.
pub(crate) fn mark_made(pin_dir: &Path, device: u32) {
    // Without the mark, an empty queueing discipline is left.
    let _ = Mark::of_clsact(pin_dir, device).set();
}

/// Removes the queueing discipline of a device if an agent made it and no filter of ours is left.
/// Where filters of others are, it stays.
pub(crate) fn forget_made(pin_dir: &Path, device: u32) -> io::Result<()> {
    let mark = Mark::of_clsact(pin_dir, device);
    if !mark.is_set() {
        return Ok(());
    }
    if device::name(device).is_none() {
        return mark.remove();
    }
    let netlink = Netlink::open(None)?;
    let (mut has_ours, mut has_any) = (false, false);
    for direction in Direction::BOTH {
        let filters = filters::of(&netlink, device, direction)?;
        has_ours |= filters.iter().any(|filter| !is_foreign(filter, direction));
        has_any |= !filters.is_empty();
    }
    if has_ours {
        return Ok(());
    }
    mark.remove()?;
    if has_any { Ok(()) } else { filters::remove_clsact(&netlink, device) }
}

/// Removes what an agent that was killed while it attached has left: queueing disciplines, and filters without a pin.
/// To be called when nothing is pinned any more.
pub(crate) fn forget_all_made(pin_dir: &Path) {
    for device in Mark::with_clsact(pin_dir) {
        if let Some(name) = device::name(device) {
            for direction in Direction::BOTH {
                // Most often there is none.
                let _ = remove(&name, direction);
            }
        }
        if let Err(error) = forget_made(pin_dir, device) {
            warn!(device, %error, "an empty queueing discipline is left");
        }
    }
}

/// How to attach beside foreign filters, if there are any. tcx programs run before all filters
/// (`sch_handle_egress`, net/core/dev.c, Linux 6.6). On ingress that order is right; on egress
/// foreign filters would see replies with the Service as their source.
pub(crate) fn mode_beside(filters: &[Filter], direction: Direction) -> Option<AttachMode> {
    let has_foreign = filters.iter().any(|filter| is_foreign(filter, direction));
    (direction == Direction::Egress && has_foreign).then_some(AttachMode::Clsact)
}

/// Unpins our filter if another process removed it together with the device's queueing discipline. The
/// kernel takes a device off its list before the device's filters, so a device that is still there has
/// lost them to a process; of one that is gone the next call of
/// [`attach_devices`](crate::datapath::Datapath::attach_devices) removes all.
pub(crate) fn forget_lost(
    pin_dir: &Path,
    filters: &[Filter],
    device: &Device,
    direction: Direction,
) {
    for role in Role::BOTH {
        let pin = pin(pin_dir, device, role, direction);
        let is_lost = pin.exists() && filters.iter().all(|filter| is_foreign(filter, direction));
        if is_lost && device.is_there() {
            let _ = fs::remove_file(pin);
            warn!(
                device = %device.name,
                "the filter of {} was removed by somebody else; it is attached again",
                role.program(direction)
            );
        }
    }
}

fn pin(pin_dir: &Path, device: &Device, role: Role, direction: Direction) -> PathBuf {
    Pin { mode: AttachMode::Clsact, role, direction, device: device.index }.path(pin_dir)
}

pub(crate) fn is_foreign(filter: &Filter, direction: Direction) -> bool {
    filter.handle != HANDLE_NUMBER || filter.priority != priority(direction)
}

/// A filter with a lower priority runs first; the order is that of [`Direction::order`]. The kernel
/// gives a filter without a priority 0xc000, or one less than the lowest from 0x8000 on
/// (`tcf_auto_prio`, net/sched/cls_api.c).
pub(crate) const fn priority(direction: Direction) -> u16 {
    match direction {
        Direction::Ingress => 1,
        Direction::Egress => 0xffff,
    }
}

//! Attaches the program of XDP to the drivers of devices, by pinned links: they outlive the agent, and the next
//! one replaces the program in its link, so that a card that stops its queues to attach does that once.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::programs::ProgramFd;
use aya_obj::generated::bpf_attach_type::BPF_XDP;
use tracing::{info, warn};

use super::devices::{detach, live_at};
use crate::datapath::Datapath;
use crate::datapath::direction::Role;
use crate::datapath::error::causes;
use crate::datapath::host::syscall;
use crate::datapath::link::DIRECTORY;
use crate::datapath::pin::{AttachMode, Pin, Xdp, pins};
use crate::datapath::programs::load::xdp;
use crate::device::{self, Device};

/// How long a refusal counts: a driver that is asked may stop its queues.
const PAUSE: Duration = Duration::from_secs(10);

/// The program, and where it cannot be.
#[derive(Debug, Default)]
pub(crate) struct OnDrivers {
    /// `None`: not loaded yet; an error says why the kernel refuses it.
    program: Option<Result<ProgramFd, String>>,
    /// Devices without it, why, and when that was found.
    refusals: BTreeMap<Device, (String, Instant)>,
}

impl OnDrivers {
    fn program(&mut self, ebpf: &mut Ebpf) -> Result<BorrowedFd<'_>, String> {
        let loaded = self.program.get_or_insert_with(|| load(ebpf));
        loaded.as_ref().map(|program| program.as_fd()).map_err(Clone::clone)
    }

    /// Records why a device is without it; logs it if it is new.
    fn refuse(&mut self, device: &Device, reason: String) {
        if self.refusals.get(device).is_none_or(|(before, _)| *before != reason) {
            warn!("{} is without the fast path of XDP, and tc does all: {reason}", device.name);
        }
        self.refusals.insert(device.clone(), (reason, Instant::now()));
    }

    fn was_refused(&self, device: &Device) -> bool {
        self.refusals.get(device).is_some_and(|(_, at)| at.elapsed() < PAUSE)
    }
}

impl Datapath {
    /// Attaches the program to the devices of clients outside, if it is to be, and detaches it from all others.
    /// It finds only connections of the tables that it has: `renew` gives it new ones, with the connections of the old
    /// ones, before the programs of tc get these. Until then both may note what they see in their own copy; the next
    /// packet that is tc's ends that.
    pub(super) fn attach_xdp(&mut self, devices: &[(Role, Device)], renew: bool) {
        let pin_dir = self.options.pin_dir.clone();
        let mode = self.options.xdp;
        let wanted = devices.iter().filter(|(role, _)| *role == Role::External);
        let wanted = wanted.filter(|_| mode != Xdp::Off);
        let wanted: Vec<&Device> = wanted.map(|(_, device)| device).collect();
        for pin in pins(&pin_dir).iter().filter(|pin| pin.mode == AttachMode::Xdp) {
            if wanted.iter().all(|device| device.index != pin.device) {
                detach(&pin_dir, pin);
            }
        }
        let Self { ebpf, xdp, .. } = self;
        xdp.refusals.retain(|device, _| wanted.contains(&device));
        for device in wanted {
            if xdp.was_refused(device) {
                continue;
            }
            let program = xdp.program(ebpf);
            let result = program.and_then(|program| attach(&pin_dir, device, program, mode, renew));
            let pin = Pin::of_xdp(device.index);
            match result {
                Ok(is_new) => {
                    xdp.refusals.remove(device);
                    if is_new {
                        info!(device = %device.name, program = pin.program(), "attached");
                    }
                }
                Err(reason) => {
                    // One of an earlier agent would go on with that one's tables.
                    detach(&pin_dir, &pin);
                    if device.is_there() {
                        xdp.refuse(device, reason);
                    }
                }
            }
        }
    }

    /// On how many devices the program is.
    #[must_use]
    pub fn devices_with_xdp(&self) -> usize {
        pins(&self.options.pin_dir).iter().filter(|pin| pin.mode == AttachMode::Xdp).count()
    }
}

fn load(ebpf: &mut Ebpf) -> Result<ProgramFd, String> {
    let program = xdp(ebpf).map_err(|error| causes(&error))?;
    let fd = program.fd().map_err(|error| causes(&error))?;
    fd.try_clone().map_err(|error| causes(&error))
}

/// Attaches the program to a device; returns whether it is new there.
fn attach(
    pin_dir: &Path,
    device: &Device,
    program: BorrowedFd<'_>,
    mode: Xdp,
    renew: bool,
) -> Result<bool, String> {
    let path = Pin::of_xdp(device.index).path(pin_dir);
    let unusable = |error| format!("the pin {} cannot be made or used: {error}", path.display());
    if let Some(link) = live_at(&path, device, BPF_XDP).map_err(unusable)? {
        if renew {
            syscall::update_link(link.as_fd(), program).map_err(unusable)?;
        }
        return Ok(false);
    }
    let unfit = device::unfit_for_xdp(device);
    if let Some(unfit) = unfit.filter(|unfit| mode != Xdp::Any || unfit.always) {
        return Err(unfit.why.to_owned());
    }
    let link = syscall::link_xdp(program, device.index).map_err(explain)?;
    // A stale pin of an earlier device with this index.
    let _ = fs::remove_file(&path);
    fs::create_dir_all(pin_dir.join(DIRECTORY)).map_err(unusable)?;
    syscall::pin(link.as_fd(), &path).map_err(unusable)?;
    Ok(true)
}

/// What a refusal means (`dev_xdp_attach`, net/core/dev.c; `virtnet_xdp_set`, drivers/net/virtio_net.c), and what to
/// change.
fn explain(error: io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => {
            "another program of XDP is there (`bpftool net` shows it), and is left alone".to_owned()
        }
        Some(libc::EOPNOTSUPP) => {
            "its driver runs no programs of XDP itself, or not with these offloads: try `ethtool -K DEVICE \
             rx-gro-hw off lro off`, or for virtio_net `ctrl_guest_offloads=on` in QEMU"
                .to_owned()
        }
        Some(libc::ENOMEM) => {
            "its driver has too few queues, of which it wants one more for each CPU (virtio_net of older kernels): try \
             `ethtool -L DEVICE combined 1`, or give the card more (`queues` and `mq=on` in QEMU)"
                .to_owned()
        }
        Some(libc::EINVAL | libc::ERANGE | libc::E2BIG | libc::ENOSPC) => format!(
            "its driver refuses ({error}): mostly for a large MTU, LRO, or too many queues for the CPUs; the \
             kernel's log says more"
        ),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_to_change() {
        let said = |number| explain(io::Error::from_raw_os_error(number));
        for (number, change) in [
            (libc::EOPNOTSUPP, "`ethtool -K DEVICE rx-gro-hw off lro off`"),
            // The guest cannot switch off what its host does then.
            (libc::EOPNOTSUPP, "`ctrl_guest_offloads=on`"),
            (libc::ENOMEM, "`ethtool -L DEVICE combined 1`"),
            (libc::EINVAL, "a large MTU"),
        ] {
            assert!(said(number).contains(change), "{number}: {}", said(number));
        }
    }
}

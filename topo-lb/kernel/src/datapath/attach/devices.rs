//! Attaches the tc programs to devices: by tcx (Linux 6.6), else by a clsact queueing discipline.
//!
//! A tcx link is pinned like the links of the socket hooks. A clsact filter has no link, so its
//! program is pinned. Each pin's name has the device's index, so the pins list what is attached.

use std::fs;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::Map;
use aya::programs::ProgramError;
use aya::programs::links::FdLink;
use aya::programs::tc::{NlOptions, TcAttachOptions, TcError, qdisc_add_clsact};
use aya_obj::generated::bpf_attach_type;
use topo_lb_common::device::Device as Limits;
use topo_lb_common::maps;
use tracing::{info, warn};

use super::clsact::{self, HANDLE, forget_lost, mode_beside, remove};
use super::filters;
use crate::datapath::Datapath;
use crate::datapath::direction::{Direction, Role};
use crate::datapath::host::syscall::{self, LinkTarget};
use crate::datapath::link::DIRECTORY;
use crate::datapath::maps::pinned::{Hash, Raw, absent_is_fine, open};
use crate::datapath::pin::{AttachMode, Pin, TcAttach, pins};
use crate::datapath::programs::load::classifier;
use crate::device::{self, Device};
use crate::netlink::Netlink;

impl Datapath {
    /// Attaches both programs of its role to each of these devices, and detaches them from all others.
    /// Logs each failure; the next call retries. `renew` also replaces programs of an earlier agent.
    /// Returns whether only programs of this agent are attached.
    pub fn attach_devices(&mut self, devices: &[(Role, Device)], renew: bool) -> bool {
        let pin_dir = self.options.pin_dir.clone();
        let mut all_ours = true;
        let netlink = Netlink::open(None).ok();
        for pin in pins(&pin_dir).iter().filter(|pin| pin.mode != AttachMode::Xdp) {
            if !devices.iter().any(|(_, device)| device.index == pin.device) {
                all_ours &= detach(&pin_dir, pin);
                forget(&pin_dir, pin.device);
            }
        }
        if let Some(carried) = &mut self.carried {
            carried.begin();
        }
        // With the connections in its new tables: it drops what a client may not open.
        self.attach_xdp(devices, renew);
        // First egress on all devices: replies must be translated before a connection can be.
        for direction in Direction::BOTH {
            for (role, device) in devices {
                let list = |netlink| filters::of(netlink, device.index, direction).ok();
                let filters = netlink.as_ref().and_then(list);
                if let Some(filters) = &filters {
                    forget_lost(&pin_dir, filters, device, direction);
                }
                let only = match self.options.tc_attach {
                    TcAttach::Auto => {
                        filters.as_ref().and_then(|filters| mode_beside(filters, direction))
                    }
                    TcAttach::Tcx => Some(AttachMode::Tcx),
                    TcAttach::Clsact => Some(AttachMode::Clsact),
                };
                match attach(&mut self.ebpf, &pin_dir, (*role, device), direction, renew, only) {
                    Ok(is_new) => {
                        if is_new {
                            let program = role.program(direction);
                            info!(device = %device.name, program, "attached");
                        }
                    }
                    // The next call removes all that it had.
                    Err(_) if !device.is_there() => {}
                    Err(error) => {
                        warn!("{error:#}; its traffic to Services is not translated");
                        all_ours = false;
                    }
                }
            }
        }
        if let Some(carried) = &mut self.carried {
            carried.end();
        }
        if renew && all_ours {
            self.carried = None;
            self.start_reply_filter();
            self.start_quota();
        }
        all_ours
    }

    /// Unpins the maps of an earlier agent that served frontends of all kinds.
    pub fn forget_all_frontends(&self) {
        for name in maps::ALL_FRONTENDS {
            let _ = fs::remove_file(self.options.pin_dir.join(name));
        }
    }

    /// Detaches the tc programs of an earlier agent and unpins their maps.
    pub fn remove_tc(&mut self) {
        let pin_dir = self.options.pin_dir.clone();
        detach_all(&pin_dir);
        for name in maps::TC {
            let _ = fs::remove_file(pin_dir.join(name));
        }
    }
}

/// Detaches all tc programs; returns the names of their pins.
pub(crate) fn detach_all(pin_dir: &Path) -> Vec<String> {
    let pins = pins(pin_dir);
    // XDP first, then ingress: replies must be translated as long as connections are.
    for pin in pins.iter().filter(|pin| pin.direction == Direction::Ingress) {
        detach(pin_dir, pin);
    }
    for pin in pins.iter().filter(|pin| pin.direction == Direction::Egress) {
        detach(pin_dir, pin);
    }
    clsact::forget_all_made(pin_dir);
    pins.iter().map(Pin::name).collect()
}

/// Detaches one program; returns whether it is gone.
pub(super) fn detach(pin_dir: &Path, pin: &Pin) -> bool {
    let mut is_gone = true;
    if pin.mode == AttachMode::Clsact
        && let Some(name) = device::name(pin.device)
        && let Err(error) = remove(&name, pin.direction)
    {
        warn!(device = %name, %error, "a filter of {} is left", pin.program());
        is_gone = false;
    }
    if let Err(error) = fs::remove_file(pin.path(pin_dir))
        && error.kind() != io::ErrorKind::NotFound
    {
        warn!(%error, "{} cannot be removed", pin.path(pin_dir).display());
        is_gone = false;
    }
    if pin.mode == AttachMode::Clsact
        && let Err(error) = clsact::forget_made(pin_dir, pin.device)
    {
        warn!(device = pin.device, %error, "an empty queueing discipline is left");
    }
    is_gone
}

/// Removes the entry of a device in the map `devices`: another device may get its index.
fn forget(pin_dir: &Path, device: u32) {
    let removed = open(pin_dir, maps::DEVICES, Map::LruHashMap)
        .map_err(anyhow::Error::from)
        .and_then(|mut map: Hash<u32, Limits>| Ok(absent_is_fine(map.remove(&Raw(device)))?));
    if let Err(error) = removed {
        warn!(%error, "the map {} keeps what device {device} used", maps::DEVICES);
    }
}

/// Attaches one program to one device; returns whether it is new. A device that had the other role
/// gets the program in place of that role's.
fn attach(
    ebpf: &mut Ebpf,
    pin_dir: &Path,
    (role, device): (Role, &Device),
    direction: Direction,
    renew: bool,
    only: Option<AttachMode>,
) -> anyhow::Result<bool> {
    let pin = |role, mode| Pin { mode, role, direction, device: device.index }.path(pin_dir);
    let (tcx, clsact) = (pin(role, AttachMode::Tcx), pin(role, AttachMode::Clsact));
    let others_clsact = pin(role.other(), AttachMode::Clsact);
    let name = role.program(direction);
    let refused = || format!("{name} cannot be attached to {}", device.name);
    let unusable = |path: &Path| format!("the pin {} cannot be made or used", path.display());
    let program = classifier(ebpf, role, direction)?;
    // The link of either role, with the path of its pin.
    let mut attached = None;
    for path in [tcx.clone(), pin(role.other(), AttachMode::Tcx)] {
        let link = live(&path, device, direction).with_context(|| unusable(&path))?;
        attached = attached.or(link.map(|link| (link, path)));
    }
    let moves = attached.is_some() && only == Some(AttachMode::Clsact);
    if let Some((link, path)) = attached.as_ref().filter(|_| !moves) {
        if renew || *path != tcx {
            let fd = program.fd().with_context(refused)?;
            syscall::update_link(link.as_fd(), fd.as_fd()).with_context(|| unusable(path))?;
            fs::rename(path, &tcx).with_context(|| unusable(&tcx))?;
        }
        return Ok(false);
    }
    let is_filter = clsact.exists() || others_clsact.exists();
    if clsact.exists() && !renew && !moves {
        return Ok(false);
    }
    fs::create_dir_all(pin_dir.join(DIRECTORY)).with_context(|| unusable(&tcx))?;
    if !is_filter && only != Some(AttachMode::Clsact) {
        let order = TcAttachOptions::TcxOrder(direction.order());
        match program.attach_with_options(&device.name, direction.attach_type(), order) {
            Ok(id) => {
                let link = program.take_link(id).with_context(refused)?;
                let link = FdLink::try_from(link).with_context(refused)?;
                // A stale pin of an earlier device with this index.
                let _ = fs::remove_file(&tcx);
                link.pin(&tcx).with_context(|| unusable(&tcx))?;
                return Ok(true);
            }
            // Linux before 6.6 has no such attach type.
            Err(ProgramError::SyscallError(error))
                if only.is_none() && error.io_error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(error).with_context(refused),
        }
    }
    match qdisc_add_clsact(&device.name) {
        Ok(()) => clsact::mark_made(pin_dir, device.index),
        Err(TcError::AlreadyAttached) => {}
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => {}
        Err(error) => return Err(error).with_context(refused),
    }
    let replace = || clsact::filter(&device.name, direction).with_context(refused);
    let id = if is_filter {
        program.attach_to_link(replace()?)
    } else {
        let priority = clsact::priority(direction);
        let options = NlOptions { priority, handle: HANDLE, ..NlOptions::default() };
        let options = TcAttachOptions::Netlink(options);
        match program.attach_with_options(&device.name, direction.attach_type(), options) {
            // A filter without a pin, left by a clean-up in another network namespace. It would see
            // packets, too, so it gets this program.
            Err(ProgramError::TcError(TcError::NetlinkError(error)))
                if error.raw_os_error() == Some(libc::EEXIST) =>
            {
                program.attach_to_link(replace()?)
            }
            result => result,
        }
    };
    let link = program.take_link(id.with_context(refused)?).with_context(refused)?;
    let _ = fs::remove_file(&clsact);
    let pinned = program.pin(&clsact);
    // A filter outlives the process, unless the link is dropped.
    std::mem::forget(link);
    pinned.with_context(|| unusable(&clsact))?;
    let _ = fs::remove_file(&others_clsact);
    if let Some((_, path)) = attached {
        // Only now: while both exist, the second one finds nothing to translate.
        fs::remove_file(&path).with_context(|| unusable(&path))?;
        info!(
            device = %device.name,
            "{name} is moved from tcx to clsact, after the other filters of this device"
        );
    }
    Ok(!is_filter)
}

/// The pinned link, if it exists and is attached to this device.
fn live(path: &Path, device: &Device, direction: Direction) -> io::Result<Option<OwnedFd>> {
    live_at(path, device, direction.tcx_type())
}

/// The same, at any hook of devices.
pub(super) fn live_at(
    path: &Path,
    device: &Device,
    hook: bpf_attach_type,
) -> io::Result<Option<OwnedFd>> {
    let attach_type = hook as u32;
    let here = LinkTarget::Device { index: device.index, attach_type };
    let link = syscall::open_link(path)?;
    Ok(link.filter(|(_, info)| info.target == here).map(|(link, _)| link))
}

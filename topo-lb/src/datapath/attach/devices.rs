//! Attaches the tc programs to devices: by tcx where the kernel has it (Linux 6.6), by a clsact
//! queueing discipline before.
//!
//! A tcx link is pinned, as those of the sockets' hooks are. Of a clsact filter the program is
//! pinned instead, so that it is known where filters are. Either way the pin's name holds the
//! device's index, and what is pinned is what is attached.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use aya::Ebpf;
use aya::programs::links::FdLink;
use aya::programs::tc::{
    NlOptions, SchedClassifierLink, TcAttachOptions, TcError, TcHandle, qdisc_add_clsact,
};
use aya::programs::{LinkOrder, ProgramError, TcAttachType};
use thiserror::Error;
use topo_lb_common::maps;
use tracing::{info, warn};

use super::filters::{Filter, Filters};
use super::link::DIRECTORY;
use crate::datapath::host::syscall::{self, LINK_TYPE_TCX};
use crate::datapath::maps::reply_filter::ReplyFilter;
use crate::datapath::programs::load::{Datapath, LoadError, causes, classifier};
use crate::device::Device;

/// The way that packets go through a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// Received by the node.
    Ingress,
    /// Sent by the node.
    Egress,
}

/// Of filters: a number that nobody else uses by accident.
const HANDLE: TcHandle = TcHandle::new(0, 0x7470);
const HANDLE_NUMBER: u32 = 0x7470;

/// Where agents before had their filter on egress. Filters without a priority came after it.
const OLDER_EGRESS: u16 = 0xbfff;

impl Direction {
    /// Both, in the order of attaching: the way back is there before a connection can go.
    pub const BOTH: [Self; 2] = [Self::Egress, Self::Ingress];

    /// The program's name, and the beginning of its pins' names.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Ingress => "topo_lb_ingress",
            Self::Egress => "topo_lb_egress",
        }
    }

    /// As people read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        }
    }

    /// Its entry of `packets`.
    pub(crate) const fn hook(self) -> u32 {
        match self {
            Self::Ingress => 0,
            Self::Egress => 1,
        }
    }

    pub(crate) const fn attach_type(self) -> TcAttachType {
        match self {
            Self::Ingress => TcAttachType::Ingress,
            Self::Egress => TcAttachType::Egress,
        }
    }

    /// `enum bpf_attach_type`: `BPF_TCX_INGRESS`, `BPF_TCX_EGRESS`.
    const fn tcx_type(self) -> u32 {
        match self {
            Self::Ingress => 46,
            Self::Egress => 47,
        }
    }

    /// Nearest to the client: what others see on the node's side are endpoints, each way.
    fn order(self) -> LinkOrder {
        match self {
            Self::Ingress => LinkOrder::first(),
            Self::Egress => LinkOrder::last(),
        }
    }

    /// The same for filters: the lower is asked first. The kernel gives a filter whose maker names no
    /// priority 0xc000, or one less than the lowest from 0x8000 on (`tcf_auto_prio`,
    /// net/sched/cls_api.c).
    const fn priority(self) -> u16 {
        match self {
            Self::Ingress => 1,
            Self::Egress => 0xffff,
        }
    }
}

/// How a program is attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AttachMode {
    /// A tcx link.
    Tcx,
    /// A filter of a clsact queueing discipline.
    Clsact,
}

impl AttachMode {
    /// As people read it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Tcx => "tcx",
            Self::Clsact => "clsact",
        }
    }
}

/// Something that is pinned because it is attached.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pin {
    pub(crate) mode: AttachMode,
    pub(crate) direction: Direction,
    pub(crate) device: u32,
}

impl Pin {
    fn name(&self) -> String {
        let mode = match self.mode {
            AttachMode::Tcx => "",
            AttachMode::Clsact => "_clsact",
        };
        format!("{}{mode}_{}", self.direction.program(), self.device)
    }

    pub(crate) fn path(&self, pin_dir: &Path) -> PathBuf {
        pin_dir.join(DIRECTORY).join(self.name())
    }

    fn parse(name: &str) -> Option<Self> {
        Direction::BOTH.into_iter().find_map(|direction| {
            let rest = name.strip_prefix(direction.program())?.strip_prefix('_')?;
            let (mode, device) = match rest.strip_prefix("clsact_") {
                Some(device) => (AttachMode::Clsact, device),
                None => (AttachMode::Tcx, rest),
            };
            Some(Self { mode, direction, device: device.parse().ok()? })
        })
    }
}

/// Why a device is not attached to.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The kernel does not attach the program.
    #[error("{program} cannot be attached to {device}: {reason}")]
    Refused {
        /// The program.
        program: &'static str,
        /// The device's name.
        device: String,
        /// What the kernel answered.
        reason: String,
    },
    /// Something cannot be pinned, or its pin cannot be used.
    #[error("the pin {} cannot be made or used: {reason}", path.display())]
    Pin {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The program is not there.
    #[error(transparent)]
    Object(#[from] LoadError),
}

impl Datapath {
    /// Attaches both programs to these devices, and detaches them from all others. What cannot be
    /// attached is told in the log, and tried again with the next call. `renew` also puts this
    /// agent's programs in the place of those that are attached already. Returns whether no other
    /// programs than this agent's are left.
    pub fn attach_devices(&mut self, devices: &[Device], renew: bool) -> bool {
        let pin_dir = self.options.pin_dir.clone();
        let mut all_ours = true;
        let filters = Filters::open().ok();
        for pin in &pins(&pin_dir) {
            if !devices.iter().any(|device| device.index == pin.device) {
                all_ours &= detach(&pin_dir, pin);
            }
        }
        // Every way back is there before a connection can go by any device.
        for direction in Direction::BOTH {
            for device in devices {
                if let Some(filters) = &filters {
                    forget_lost(&pin_dir, filters, device, direction);
                }
                let only = match (self.options.tc_attach_mode, &filters) {
                    (None, Some(filters)) => mode_beside(filters, device, direction),
                    (only, _) => only,
                };
                // Agents before are met at the start alone.
                let older = filters.as_ref().filter(|_| renew);
                let has_older =
                    older.is_some_and(|filters| forget_older(&pin_dir, filters, device, direction));
                match attach(&mut self.ebpf, &pin_dir, device, direction, renew, only) {
                    Ok(is_new) => {
                        if is_new {
                            info!(device = %device.name, program = direction.program(), "attached");
                        }
                        // Only now: in between the second one finds nothing to translate.
                        if has_older
                            && let Err(error) = remove(&device.name, direction, OLDER_EGRESS)
                        {
                            warn!(device = %device.name, %error, "a filter of an older agent is left");
                        }
                    }
                    Err(error) => {
                        warn!("{error}; its traffic to Services is not translated");
                        all_ours = false;
                    }
                }
            }
        }
        if renew && all_ours {
            self.keep_answerers();
        }
        all_ours
    }

    /// Programs of an earlier agent would open connections without a mark: only once there are none.
    fn keep_answerers(&mut self) {
        let Some(marks) = self.ebpf.take_map(maps::ANSWERERS) else { return };
        let table = |name: &str| self.ebpf.map(name);
        let (Some(four), Some(six)) = (table(maps::CONNECTIONS4), table(maps::CONNECTIONS6)) else {
            return;
        };
        match ReplyFilter::keep(marks, four, six) {
            Ok(answerers) => self.answerers = Some(answerers),
            Err(error) => warn!("{error}; tc looks up every packet that goes out"),
        }
    }

    /// Takes away what an earlier agent had for tc, if anything.
    pub fn remove_tc(&mut self) {
        let pin_dir = self.options.pin_dir.clone();
        detach_all(&pin_dir);
        for name in maps::TC {
            let _ = fs::remove_file(pin_dir.join(name));
        }
    }
}

/// What is pinned, of tc.
pub(crate) fn pins(pin_dir: &Path) -> BTreeSet<Pin> {
    let entries = fs::read_dir(pin_dir.join(DIRECTORY)).into_iter().flatten().flatten();
    entries.filter_map(|entry| Pin::parse(entry.file_name().to_str()?)).collect()
}

/// Detaches everything; what it was, for people.
pub(crate) fn detach_all(pin_dir: &Path) -> Vec<String> {
    let pins = pins(pin_dir);
    // No connection goes before its way back does.
    for pin in pins.iter().filter(|pin| pin.direction == Direction::Ingress) {
        detach(pin_dir, pin);
    }
    for pin in pins.iter().filter(|pin| pin.direction == Direction::Egress) {
        detach(pin_dir, pin);
    }
    pins.iter().map(Pin::name).collect()
}

/// Detaches one program; whether nothing is left.
fn detach(pin_dir: &Path, pin: &Pin) -> bool {
    let mut is_gone = true;
    if pin.mode == AttachMode::Clsact
        && let Some(name) = device_name(pin.device)
        && let Err(error) =
            remove(&name, pin.direction, pin.direction.priority()).or_else(|error| {
                // An older agent's, perhaps.
                let is_egress = pin.direction == Direction::Egress;
                let older = is_egress.then(|| remove(&name, pin.direction, OLDER_EGRESS));
                older.and_then(Result::ok).ok_or(error)
            })
    {
        warn!(device = %name, %error, "a filter of {} is left", pin.direction.program());
        is_gone = false;
    }
    if let Err(error) = fs::remove_file(pin.path(pin_dir))
        && error.kind() != io::ErrorKind::NotFound
    {
        warn!(%error, "{} cannot be removed", pin.path(pin_dir).display());
        is_gone = false;
    }
    is_gone
}

/// The name that a device has now.
pub(crate) fn device_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: room for the longest name.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    // SAFETY: a terminated name, if any.
    (!found.is_null())
        .then(|| unsafe { std::ffi::CStr::from_ptr(found) }.to_string_lossy().into_owned())
}

/// The filter that topo-lb has, or would have, on a device.
fn filter(device: &str, direction: Direction) -> io::Result<SchedClassifierLink> {
    let (attach_type, priority) = (direction.attach_type(), direction.priority());
    SchedClassifierLink::attached(device, attach_type, priority, HANDLE, None)
}

/// Removes the filter of this priority that topo-lb has on a device.
fn remove(device: &str, direction: Direction, priority: u16) -> io::Result<()> {
    use aya::programs::links::Link as _;
    let attach_type = direction.attach_type();
    let link = SchedClassifierLink::attached(device, attach_type, priority, HANDLE, None)?;
    link.detach().map_err(io::Error::other)
}

/// Unpins the filter of an older agent, which is to be replaced; whether there is one.
fn forget_older(pin_dir: &Path, filters: &Filters, device: &Device, direction: Direction) -> bool {
    let is_older =
        |filter: &Filter| !is_foreign(filter, direction) && filter.priority != direction.priority();
    let has_older = filters.of(device.index, direction).is_ok_and(|all| all.iter().any(is_older));
    if has_older {
        let pin = Pin { mode: AttachMode::Clsact, direction, device: device.index };
        let _ = fs::remove_file(pin.path(pin_dir));
    }
    has_older
}

/// The means that keeps the order right beside filters of others, if there are any. Programs of tcx
/// run before all filters (`sch_handle_egress`, net/core/dev.c, Linux 6.6). On ingress that is the
/// order that is wanted; on egress filters of others would see answers that come from a Service.
fn mode_beside(filters: &Filters, device: &Device, direction: Direction) -> Option<AttachMode> {
    if direction == Direction::Ingress {
        return None;
    }
    let all = filters.of(device.index, direction).ok()?;
    all.iter().any(|filter| is_foreign(filter, direction)).then_some(AttachMode::Clsact)
}

/// Unpins a filter that went with the device's queueing discipline, whose owner has replaced it.
fn forget_lost(pin_dir: &Path, filters: &Filters, device: &Device, direction: Direction) {
    let pin = Pin { mode: AttachMode::Clsact, direction, device: device.index }.path(pin_dir);
    if pin.exists()
        && let Ok(all) = filters.of(device.index, direction)
        && all.iter().all(|filter| is_foreign(filter, direction))
    {
        let _ = fs::remove_file(pin);
        warn!(
            device = %device.name,
            "the filter of {} was removed by somebody else; it is attached again", direction.program()
        );
    }
}

/// Whether a filter is somebody else's.
pub(crate) fn is_foreign(filter: &Filter, direction: Direction) -> bool {
    let is_older = direction == Direction::Egress && filter.priority == OLDER_EGRESS;
    filter.handle != HANDLE_NUMBER || filter.priority != direction.priority() && !is_older
}

/// Attaches one program to one device; whether that was new.
fn attach(
    ebpf: &mut Ebpf,
    pin_dir: &Path,
    device: &Device,
    direction: Direction,
    renew: bool,
    only: Option<AttachMode>,
) -> Result<bool, DeviceError> {
    let pin = |mode| Pin { mode, direction, device: device.index };
    let tcx = pin(AttachMode::Tcx).path(pin_dir);
    let clsact = pin(AttachMode::Clsact).path(pin_dir);
    let refused = |reason: String| DeviceError::Refused {
        program: direction.program(),
        device: device.name.clone(),
        reason,
    };
    let unusable = |path: &Path| {
        let path = path.to_owned();
        move |error: io::Error| DeviceError::Pin { path, reason: error.to_string() }
    };
    let program = classifier(ebpf, direction)?;
    let tcx_link = live(&tcx, device, direction).map_err(unusable(&tcx))?;
    let moves = tcx_link.is_some() && only == Some(AttachMode::Clsact);
    if let Some(link) = tcx_link.filter(|_| !moves) {
        if renew {
            let fd = program.fd().map_err(|error| refused(causes(&error)))?;
            syscall::update_link(link.as_fd(), fd.as_fd()).map_err(unusable(&tcx))?;
        }
        return Ok(false);
    }
    let is_filter = clsact.exists();
    if is_filter && !renew && !moves {
        return Ok(false);
    }
    fs::create_dir_all(pin_dir.join(DIRECTORY)).map_err(unusable(&tcx))?;
    if !is_filter && only != Some(AttachMode::Clsact) {
        let order = TcAttachOptions::TcxOrder(direction.order());
        match program.attach_with_options(&device.name, direction.attach_type(), order) {
            Ok(id) => {
                let link = program.take_link(id).map_err(|error| refused(causes(&error)))?;
                let link = FdLink::try_from(link).map_err(|error| refused(causes(&error)))?;
                // Of a device that had this index before.
                let _ = fs::remove_file(&tcx);
                link.pin(&tcx).map_err(|error| DeviceError::Pin {
                    path: tcx.clone(),
                    reason: causes(&error),
                })?;
                return Ok(true);
            }
            // Linux before 6.6 knows no such attach type.
            Err(ProgramError::SyscallError(error))
                if only.is_none() && error.io_error.raw_os_error() == Some(libc::EINVAL) => {}
            Err(error) => return Err(refused(causes(&error))),
        }
    }
    match qdisc_add_clsact(&device.name) {
        Ok(()) | Err(TcError::AlreadyAttached) => {}
        Err(TcError::NetlinkError(error)) if error.raw_os_error() == Some(libc::EEXIST) => {}
        Err(error) => return Err(refused(causes(&error))),
    }
    let id = if is_filter {
        let link = filter(&device.name, direction).map_err(|error| refused(error.to_string()))?;
        program.attach_to_link(link)
    } else {
        let options =
            NlOptions { priority: direction.priority(), handle: HANDLE, ..NlOptions::default() };
        let options = TcAttachOptions::Netlink(options);
        match program.attach_with_options(&device.name, direction.attach_type(), options) {
            // One that nobody knows of any more: a clean-up in another network namespace has left
            // it. It would see packets too, so it gets this program.
            Err(ProgramError::TcError(TcError::NetlinkError(error)))
                if error.raw_os_error() == Some(libc::EEXIST) =>
            {
                let link = filter(&device.name, direction);
                program.attach_to_link(link.map_err(|error| refused(error.to_string()))?)
            }
            result => result,
        }
    };
    let id = id.map_err(|error| refused(causes(&error)))?;
    let link = program.take_link(id).map_err(|error| refused(causes(&error)))?;
    let _ = fs::remove_file(&clsact);
    let pinned = program.pin(&clsact);
    // A filter outlives its maker, unless the maker takes it away.
    std::mem::forget(link);
    pinned.map_err(|error| DeviceError::Pin { path: clsact, reason: causes(&error) })?;
    if moves {
        // Only now: in between both are there, and the second one finds nothing to translate.
        fs::remove_file(&tcx).map_err(unusable(&tcx))?;
        info!(
            device = %device.name,
            "{} is moved from tcx to clsact, after the other filters of this device",
            direction.program()
        );
    }
    Ok(!is_filter)
}

/// The pinned link, if it is there and attached to this device.
fn live(path: &Path, device: &Device, direction: Direction) -> io::Result<Option<OwnedFd>> {
    let Some((link, info)) = syscall::tcx_link(path)? else {
        return Ok(None);
    };
    let is_live = info.link_type == LINK_TYPE_TCX
        && info.device == device.index
        && info.attach_type == direction.tcx_type();
    Ok(is_live.then_some(link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_known_by_its_name() {
        for mode in [AttachMode::Tcx, AttachMode::Clsact] {
            for direction in Direction::BOTH {
                let pin = Pin { mode, direction, device: 12 };
                assert_eq!(Pin::parse(&pin.name()), Some(pin));
            }
        }
        for other in ["connect4", "topo_lb_ingress", "topo_lb_ingress_x", "topo_lb_egress_clsact_"]
        {
            assert_eq!(Pin::parse(other), None, "{other}");
        }
    }
}

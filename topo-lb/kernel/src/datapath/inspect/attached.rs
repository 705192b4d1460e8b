//! Lists what is attached where, from the pins and the kernel, without the agent.

use std::path::{Path, PathBuf};

use aya::programs::{ProgramInfo, SchedClassifier};
use aya_obj::generated::bpf_attach_type;
use serde::Serialize;

use crate::datapath::attach::accounting;
use crate::datapath::attach::clsact::is_foreign;
use crate::datapath::attach::filters;
use crate::datapath::direction::{Direction, Role};
use crate::datapath::hook::Hook;
use crate::datapath::host::syscall::{self, LinkTarget};
use crate::datapath::link::{Link, pin_path};
use crate::datapath::maps::error::ReadError;
use crate::datapath::pin::{AttachMode, Pin, pins};
use crate::device;
use crate::device::link::links;
use crate::netlink::Netlink;

/// A program at a socket hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnCgroup {
    /// The kernel's id of the program.
    pub program: u32,
    /// The cgroup's id: the inode number of its directory.
    pub cgroup: u64,
}

/// A program on a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct OnDevice {
    /// The device's index, in the agent's network namespace.
    pub index: u32,
    /// Its name, if this process is in that network namespace.
    pub name: Option<String>,
    /// The direction of the packets that the program sees.
    #[serde(skip)]
    pub direction: Direction,
    /// The clients behind the device.
    pub role: Role,
    /// How it is attached.
    #[serde(rename = "means")]
    pub mode: AttachMode,
    /// The kernel's id of the program.
    pub program: u32,
    /// Foreign programs and filters on the same device and direction, if they can be seen.
    pub others: Vec<String>,
}

/// The program at a socket hook; `None` if no link is pinned, or its cgroup is gone.
///
/// # Errors
/// The pinned link cannot be opened.
pub fn on_cgroup(pin_dir: &Path, hook: Hook) -> Result<Option<OnCgroup>, ReadError> {
    at(pin_path(pin_dir, hook), hook.attach_type())
}

/// The program that accounts TCP connections, likewise.
///
/// # Errors
/// The pinned link cannot be opened.
pub fn accounting(pin_dir: &Path) -> Result<Option<OnCgroup>, ReadError> {
    let [path, _] = accounting::paths(pin_dir);
    at(path, accounting::ATTACH_TYPE)
}

fn at(path: PathBuf, hook: bpf_attach_type) -> Result<Option<OnCgroup>, ReadError> {
    let link = Link::open(&path).map_err(|error| ReadError::Link(path, error))?;
    let program =
        |link: Link| Some(OnCgroup { program: link.program_id(), cgroup: link.cgroup(hook)? });
    Ok(link.and_then(program))
}

/// The devices with tc programs, by index. Leaves out a device that is gone.
///
/// # Errors
/// A pin cannot be opened.
pub fn on_devices(pin_dir: &Path) -> Result<Vec<OnDevice>, ReadError> {
    let mut all = Vec::new();
    for pin in pins(pin_dir) {
        if let Some(found) = on_device(pin_dir, &pin)? {
            all.push(found);
        }
    }
    all.sort();
    Ok(all)
}

fn on_device(pin_dir: &Path, pin: &Pin) -> Result<Option<OnDevice>, ReadError> {
    let path = pin.path(pin_dir);
    let unreadable = |error| ReadError::Link(path.clone(), error);
    let program = match pin.mode {
        AttachMode::Tcx | AttachMode::Xdp => {
            let Some((_, info)) = syscall::open_link(&path).map_err(unreadable)? else {
                return Ok(None);
            };
            match info.target {
                LinkTarget::Device { index, .. } if index == pin.device => info.program,
                _ => return Ok(None),
            }
        }
        AttachMode::Clsact => {
            let info = ProgramInfo::from_pin(&path);
            info.map_err(|error| unreadable(std::io::Error::other(error)))?.id()
        }
    };
    let name = device::name(pin.device).filter(|name| has(name, pin, program));
    let Pin { mode, role, direction, device: index } = *pin;
    // A device has one program of XDP.
    let named = name.as_deref().filter(|_| mode != AttachMode::Xdp);
    let others = named.map(|name| others(name, pin)).unwrap_or_default();
    Ok(Some(OnDevice { index, name, direction, role, mode, program, others }))
}

fn others(name: &str, pin: &Pin) -> Vec<String> {
    let programs = SchedClassifier::query_tcx(name, pin.direction.attach_type());
    let programs = programs.map(|(_, programs)| programs).unwrap_or_default();
    // The kernel keeps only the first 15 bytes.
    let own = pin.program();
    let own = &own[..own.len().min(15)];
    let mut all: Vec<String> = programs
        .iter()
        .filter(|info| info.name_as_str() != Some(own))
        .map(|info| format!("tcx {} (id {})", info.name_as_str().unwrap_or("?"), info.id()))
        .collect();
    let netlink = Netlink::open(None);
    let filters = netlink.and_then(|netlink| filters::of(&netlink, pin.device, pin.direction));
    let filters = filters.unwrap_or_default();
    let foreign = filters.into_iter().filter(|filter| is_foreign(filter, pin.direction));
    all.extend(foreign.map(|filter| filter.name));
    all.dedup();
    all
}

/// Whether the device with this name in this network namespace has the program: in another
/// namespace, the index is another device's.
fn has(name: &str, pin: &Pin, program: u32) -> bool {
    match pin.mode {
        AttachMode::Tcx => SchedClassifier::query_tcx(name, pin.direction.attach_type())
            .is_ok_and(|(_, programs)| programs.iter().any(|info| info.id() == program)),
        AttachMode::Clsact => Netlink::open(None)
            .and_then(|netlink| filters::of(&netlink, pin.device, pin.direction))
            .is_ok_and(|filters| filters.iter().any(|filter| filter.program == Some(program))),
        AttachMode::Xdp => links().is_ok_and(|links| {
            links.iter().any(|link| link.device.index == pin.device && link.xdp == Some(program))
        }),
    }
}

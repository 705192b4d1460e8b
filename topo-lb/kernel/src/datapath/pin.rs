//! How programs are attached to devices, and the names of their pins.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

use super::direction::{Direction, Role};
use super::link::DIRECTORY;

/// How programs are attached to devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum TcAttach {
    /// tcx from Linux 6.6 on; clsact before, and on devices with foreign egress filters.
    #[default]
    Auto,
    /// tcx links.
    Tcx,
    /// Filters of a clsact queueing discipline.
    Clsact,
}

/// Whether uplinks get the fast path of XDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Xdp {
    /// None does.
    #[default]
    Off,
    /// Those of cards whose driver runs programs of XDP itself. Attaching may interrupt a card for a moment.
    Auto,
    /// Also those whose driver may lose what a program sends back: veth devices, as in containers, whose other end
    /// takes no frames without a program or GRO of its own; and Hyper-V's with an accelerated network, where nothing
    /// is carried.
    Any,
}

/// How a program is attached to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AttachMode {
    /// A link of XDP, in the device's driver: only of clients outside, on ingress.
    // Before the others, so that its programs are detached first.
    Xdp,
    /// A tcx link.
    Tcx,
    /// A filter of a clsact queueing discipline.
    Clsact,
}

/// The name of the program of XDP, and of its pins.
pub(crate) const XDP: &str = "topo_lb_xdp";

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Pin {
    pub(crate) mode: AttachMode,
    pub(crate) role: Role,
    pub(crate) direction: Direction,
    pub(crate) device: u32,
}

impl Pin {
    /// That of the program of XDP on a device.
    pub(crate) const fn of_xdp(device: u32) -> Self {
        let (role, direction) = (Role::External, Direction::Ingress);
        Self { mode: AttachMode::Xdp, role, direction, device }
    }

    /// The name of the program.
    pub(crate) const fn program(&self) -> &'static str {
        match self.mode {
            AttachMode::Tcx | AttachMode::Clsact => self.role.program(self.direction),
            AttachMode::Xdp => XDP,
        }
    }

    pub(crate) fn name(&self) -> String {
        let mode = match self.mode {
            AttachMode::Tcx | AttachMode::Xdp => "",
            AttachMode::Clsact => "_clsact",
        };
        format!("{}{mode}_{}", self.program(), self.device)
    }

    pub(crate) fn path(&self, pin_dir: &Path) -> PathBuf {
        pin_dir.join(DIRECTORY).join(self.name())
    }

    fn parse(name: &str) -> Option<Self> {
        if let Some(device) = name.strip_prefix(XDP) {
            return Some(Self::of_xdp(device.strip_prefix('_')?.parse().ok()?));
        }
        let mut programs =
            Role::BOTH.into_iter().flat_map(|role| Direction::BOTH.map(|it| (role, it)));
        programs.find_map(|(role, direction)| {
            let rest = name.strip_prefix(role.program(direction))?.strip_prefix('_')?;
            let (mode, device) = match rest.strip_prefix("clsact_") {
                Some(device) => (AttachMode::Clsact, device),
                None => (AttachMode::Tcx, rest),
            };
            Some(Self { mode, role, direction, device: device.parse().ok()? })
        })
    }
}

pub(crate) fn pins(pin_dir: &Path) -> BTreeSet<Pin> {
    let entries = fs::read_dir(pin_dir.join(DIRECTORY)).into_iter().flatten().flatten();
    entries.filter_map(|entry| Pin::parse(entry.file_name().to_str()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_known_by_its_name() {
        for mode in [AttachMode::Tcx, AttachMode::Clsact] {
            for role in Role::BOTH {
                for direction in Direction::BOTH {
                    let pin = Pin { mode, role, direction, device: 12 };
                    assert_eq!(Pin::parse(&pin.name()), Some(pin));
                }
            }
        }
        let pin = Pin::of_xdp(12);
        assert_eq!(Pin::parse(&pin.name()), Some(pin));
        for other in [
            "topo_lb_xdp",
            "topo_lb_xdp_x",
            "connect4",
            "topo_lb_ingress",
            "topo_lb_ingress_x",
            "topo_lb_egress_clsact_",
        ] {
            assert_eq!(Pin::parse(other), None, "{other}");
        }
    }
}

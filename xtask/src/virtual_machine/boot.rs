//! One virtual machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::emulator::Emulator;
use crate::architecture::Architecture;
use crate::process::to_log;
use crate::workspace::Workspace;

/// A virtual machine to boot.
#[derive(Clone, Debug)]
pub(super) struct Machine<'a> {
    pub(super) architecture: Architecture,
    pub(super) cores: Cores,
    pub(super) emulator: &'a Emulator,
    pub(super) image: &'a Path,
    pub(super) initramfs: PathBuf,
    pub(super) log: PathBuf,
}

/// The processors of a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cores {
    /// One, on which the kernel preempts tasks also inside programs: a program then sees what others
    /// write while it waits, and a grace period must not count on other processors.
    OnePreempted,
    /// Two.
    Two,
}

impl Cores {
    /// QEMU's `-smp`.
    const fn count(self) -> &'static str {
        match self {
            Self::OnePreempted => "1",
            Self::Two => "2",
        }
    }

    /// What the kernel's command line needs (`PREEMPT_DYNAMIC`).
    const fn command_line(self) -> &'static str {
        match self {
            Self::OnePreempted => " preempt=full",
            Self::Two => "",
        }
    }
}

/// Reasons:
/// * `tcg`: most machines that run tests have no KVM, and with KVM inside another virtual machine a guest
///   may stall. One thread: two were no faster on two cores, and their times varied more.
/// * 3 GiB are enough for the initramfs, packed and unpacked, and for an agent's maps.
const ARGUMENTS: &[&str] = &[
    "-accel",
    "tcg,thread=single",
    "-m",
    "3G",
    "-nodefaults",
    "-nographic",
    "-serial",
    "stdio",
    "-no-reboot",
];

/// Two cards of virtio_net that are connected to each other, for the suite `virtio`. Their addresses are those that it
/// looks for. QEMU's hub has one pair of queues, and offers neither checksums nor segmentation.
const CARDS: &[&str] = &[
    "-netdev",
    "hubport,id=near,hubid=0",
    "-netdev",
    "hubport,id=far,hubid=0",
    "-device",
    "virtio-net-pci,netdev=near,mac=02:54:4c:01:01:00,romfile=",
    "-device",
    "virtio-net-pci,netdev=far,mac=02:54:4c:04:01:00,romfile=",
];

impl Machine<'_> {
    /// Boots the machine, and waits until it ends. Its output goes to the log; `hear` regularly
    /// gets the last line. Read the log for the tests' results: after a panic this succeeds, too.
    pub(super) fn run(
        &self,
        workspace: &Workspace,
        limit: Duration,
        hear: impl FnMut(&str),
    ) -> Result<()> {
        to_log(&mut self.command(workspace), &self.log, Some(limit), hear)
    }

    /// The command that boots it.
    pub(super) fn command(&self, workspace: &Workspace) -> Command {
        let mut command = self.emulator.command(workspace);
        command.args(self.architecture.machine()).args(ARGUMENTS).args(CARDS);
        command.args(["-smp", self.cores.count()]);
        command.arg("-kernel").arg(self.image).arg("-initrd").arg(&self.initramfs);
        let append = format!("{}{}", self.architecture.command_line(), self.cores.command_line());
        command.args(["-append", &append]);
        command
    }
}

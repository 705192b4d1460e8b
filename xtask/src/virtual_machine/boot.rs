//! One virtual machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::emulator::Emulator;
use super::variants::Variant;
use crate::process::to_log;
use crate::workspace::Workspace;

/// A virtual machine to boot.
#[derive(Clone, Debug)]
pub(super) struct Machine<'a> {
    pub(super) variant: &'static Variant,
    pub(super) emulator: &'a Emulator,
    pub(super) image: &'a Path,
    pub(super) initramfs: PathBuf,
    pub(super) log: PathBuf,
    /// How long it may run.
    pub(super) limit: Duration,
}

/// Reasons:
/// * `tcg`: most machines that run tests have no KVM, and with KVM inside another virtual machine a guest
///   may stall. One thread: two were no faster on two cores, and their times varied more.
const ARGUMENTS: &[&str] =
    &["-accel", "tcg,thread=single", "-nodefaults", "-nographic", "-serial", "stdio", "-no-reboot"];

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
    pub(super) fn run(&self, workspace: &Workspace, hear: impl FnMut(&str)) -> Result<()> {
        to_log(&mut self.command(workspace), &self.log, Some(self.limit), hear)
    }

    /// The command that boots it.
    pub(super) fn command(&self, workspace: &Workspace) -> Command {
        let Variant { line, flags, cores, memory, .. } = self.variant;
        let architecture = line.architecture();
        let mut command = self.emulator.command(workspace);
        command.args(architecture.machine()).args(ARGUMENTS).args(CARDS);
        command.args(["-smp", &cores.to_string(), "-m", &format!("{memory}G")]);
        command.arg("-kernel").arg(self.image).arg("-initrd").arg(&self.initramfs);
        command.args(["-append", &format!("{} {flags}", architecture.command_line())]);
        command
    }
}

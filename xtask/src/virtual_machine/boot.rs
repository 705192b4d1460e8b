//! One virtual machine.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::emulator::Emulator;
use crate::process::to_log;
use crate::workspace::Workspace;

/// A virtual machine to boot.
#[derive(Clone, Debug)]
pub(super) struct Machine<'a> {
    pub(super) emulator: &'a Emulator,
    pub(super) image: &'a Path,
    pub(super) initramfs: PathBuf,
    pub(super) log: PathBuf,
}

/// Reasons:
/// * `tcg`: most machines that run tests have no KVM, and with KVM inside another virtual machine a guest
///   may stall. One thread: two were no faster on two cores, and their times varied more.
/// * `cx16=off`: after an emulated `cmpxchg16b`, QEMU 7.2 leaves wrong flags. Linux 6.12 allocates memory
///   with this instruction, and crashes at random; without the feature it uses another way.
/// * `la57=off`: page tables with five levels only take longer to walk.
/// * 3 GiB are enough for the initramfs, packed and unpacked, and for an agent's maps.
const ARGUMENTS: &[&str] = &[
    "-accel",
    "tcg,thread=single",
    "-cpu",
    "max,la57=off,cx16=off",
    "-smp",
    "2",
    "-m",
    "3G",
    "-nodefaults",
    "-nographic",
    "-serial",
    "stdio",
    "-no-reboot",
];

/// A panic ends the machine at once, because QEMU exits instead of rebooting (`-no-reboot`).
/// `no_timer_check`: on a busy host an emulated interrupt is late for this check, and 6.12 panics.
const COMMAND_LINE: &str = "console=ttyS0 panic=-1 quiet no_timer_check";

impl Machine<'_> {
    /// Boots the machine, and waits until it ends. Its output goes to the log; `hear` regularly
    /// gets the last line. Read the log for the tests' results: after a panic this succeeds, too.
    pub(super) fn run(
        &self,
        workspace: &Workspace,
        limit: Duration,
        hear: impl FnMut(&str),
    ) -> Result<()> {
        let mut command = self.emulator.command(workspace);
        command.args(ARGUMENTS).arg("-kernel").arg(self.image).arg("-initrd").arg(&self.initramfs);
        command.args(["-append", COMMAND_LINE]);
        to_log(&mut command, &self.log, Some(limit), hear)
    }
}

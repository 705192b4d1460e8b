//! One machine, from its firmware to its end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;

use super::emulator::Emulator;
use crate::process::to_log;
use crate::workspace::Workspace;

/// What is booted.
#[derive(Clone, Debug)]
pub(super) struct Machine<'a> {
    pub(super) emulator: &'a Emulator,
    pub(super) image: &'a Path,
    pub(super) initramfs: PathBuf,
    /// Where what it says is kept.
    pub(super) log: PathBuf,
}

/// Why each is so:
/// * `tcg`: KVM is mostly not to be had where tests run, and where it is, inside of another virtual
///   machine, a guest may stall. One thread, as two were no faster on two cores and stray more.
/// * `cx16=off`: after an emulated `cmpxchg16b`, QEMU 7.2 leaves flags that are wrong. Linux 6.12
///   allocates memory by it, and comes to grief at random; without it, it does so otherwise.
/// * `la57=off`: page tables of five levels only take more time to walk.
/// * 3 GiB hold the initramfs, packed and unpacked, and the maps of an agent.
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

/// A panic ends the machine at once, as `-no-reboot` makes an end of its reboot. Without the check of
/// the timer: where the host is busy, an emulated interrupt comes too late for it, and 6.12 panics.
const COMMAND_LINE: &str = "console=ttyS0 panic=-1 quiet no_timer_check";

impl Machine<'_> {
    /// Boots it, waits for its end, and keeps what it says in a log; `hear` gets the last line of
    /// that, now and then. How it went, only the log tells: a machine that panics ends as well as any.
    ///
    /// # Errors
    /// The emulator fails, or the machine does not end in time.
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

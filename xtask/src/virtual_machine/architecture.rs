//! The kinds of processors that machines emulate, and what differs between them.

/// A kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Architecture {
    /// This machine's own: its programs also run in the virtual machine.
    X86_64,
    /// 64-bit ARM; its programs are cross-compiled.
    Arm64,
}

impl Architecture {
    /// Debian's name.
    pub(super) const fn debian(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// QEMU's program, and the package of Debian 12 with it.
    pub(super) const fn emulator(self) -> (&'static str, &'static str) {
        match self {
            Self::X86_64 => ("qemu-system-x86_64", "qemu-system-x86"),
            Self::Arm64 => ("qemu-system-aarch64", "qemu-system-arm"),
        }
    }

    /// Machine and processor. Reasons:
    /// * `cx16=off`: after an emulated `cmpxchg16b`, QEMU 7.2 leaves wrong flags. Linux 6.12 allocates
    ///   memory with this instruction, and crashes at random; without the feature it uses another way.
    /// * `la57=off`: page tables with five levels only take longer to walk.
    /// * `pauth-impdef=on`: the architected signatures of pointers take half of the emulator's time.
    pub(super) const fn machine(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &["-cpu", "max,la57=off,cx16=off"],
            Self::Arm64 => &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
        }
    }

    /// The kernel's command line. A panic ends the machine at once, because QEMU exits instead of
    /// rebooting (`-no-reboot`).
    /// `no_timer_check`: on a busy host an emulated interrupt is late for this check, and 6.12 panics.
    pub(super) const fn command_line(self) -> &'static str {
        match self {
            Self::X86_64 => "console=ttyS0 panic=-1 quiet no_timer_check",
            Self::Arm64 => "console=ttyAMA0 panic=-1 quiet",
        }
    }
}

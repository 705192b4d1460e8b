//! The kinds of processors that programs are compiled for and machines emulate, and what differs
//! between them.

/// A kind of processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Architecture {
    /// 64-bit x86.
    #[value(name = "amd64")]
    X86_64,
    /// 64-bit ARM; its programs are cross-compiled on x86.
    Arm64,
}

impl Architecture {
    /// All, in the order in which a release names them.
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Arm64];

    /// The name that Debian, OCI and Go use.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Rust's name of its target.
    pub(crate) const fn target(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The start of the names of its C compiler's programs.
    pub(crate) const fn tools(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64-linux-gnu",
            Self::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// Whether it is this machine's own.
    pub(crate) fn is_here(self) -> bool {
        self.target().starts_with(std::env::consts::ARCH)
    }

    /// QEMU's program, and the package of Debian 12 with it.
    pub(crate) const fn emulator(self) -> (&'static str, &'static str) {
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
    pub(crate) const fn machine(self) -> &'static [&'static str] {
        match self {
            Self::X86_64 => &["-cpu", "max,la57=off,cx16=off"],
            Self::Arm64 => &["-machine", "virt", "-cpu", "max,pauth-impdef=on"],
        }
    }

    /// The kernel's command line. A panic ends the machine at once, because QEMU exits instead of
    /// rebooting (`-no-reboot`).
    /// `no_timer_check`: on a busy host an emulated interrupt is late for this check, and 6.12 panics.
    pub(crate) const fn command_line(self) -> &'static str {
        match self {
            Self::X86_64 => "console=ttyS0 panic=-1 quiet no_timer_check",
            Self::Arm64 => "console=ttyAMA0 panic=-1 quiet",
        }
    }
}

//! A compiler and a linker for the eBPF object, and its Clippy.

use super::draft::Draft;
use super::step::Step;
use crate::machine::Machine;
use crate::needs::{CLIPPY_PACKAGES, COMPILER_PACKAGES, DEBIAN_LLVM, LINKER_PACKAGES};
use crate::toolchain::{Linker, OLDEST, Toolchain};

pub(super) const LINKER_VERSION: &str = "0.13.0";

/// The compiler and linker for the object, if present. Prefers a rustup nightly with the sources of
/// `core`, which was installed for such work, over `/usr/bin`.
pub(crate) fn object_tools(machine: &Machine) -> Option<(&Toolchain, &Linker)> {
    let linker = machine.linker.as_ref()?;
    compilers(machine).find(|compiler| linker.fits(compiler)).map(|compiler| (compiler, linker))
}

fn compilers(machine: &Machine) -> impl Iterator<Item = &Toolchain> {
    machine.nightlies.iter().chain(&machine.system).filter(|compiler| compiler.compiles_core())
}

impl Draft<'_> {
    pub(super) fn object(&mut self) {
        if object_tools(self.machine).is_some() {
            return;
        }
        if !self.machine.debian12 {
            return self.object_by_hand();
        }
        if self.compiler().is_none() {
            self.packages_for(COMPILER_PACKAGES);
        }
        let linker = self.machine.linker.as_ref();
        if linker.is_none_or(|it| it.version != LINKER_VERSION || it.llvm != Some(DEBIAN_LLVM)) {
            self.packages.extend(self.absent(LINKER_PACKAGES));
            let title = format!("bpf-linker {LINKER_VERSION}, compiled for LLVM {DEBIAN_LLVM}");
            let mut step = Step::new(title, "bpf-linker", &linker_command(DEBIAN_LLVM))
                .with("LLVM_PREFIX", format!("/usr/lib/llvm-{DEBIAN_LLVM}"));
            if linker.is_some() {
                step.command.push("--force".to_owned());
            }
            self.plan.steps.push(step);
        }
    }

    /// The compiler for the object, once a linker is present.
    fn compiler(&self) -> Option<&Toolchain> {
        match object_tools(self.machine) {
            Some((compiler, _)) => Some(compiler),
            // The linker compiled here uses Debian's LLVM.
            None if self.machine.debian12 => {
                compilers(self.machine).find(|compiler| compiler.llvm == DEBIAN_LLVM)
            }
            None => compilers(self.machine).next(),
        }
    }

    /// Reports what is missing on another system with unknown packages.
    fn object_by_hand(&mut self) {
        let Some(compiler) = self.compiler() else {
            let what = format!(
                "no compiler for eBPF: it takes rustc {OLDEST} or later with the sources \
                 of `core` (rust-src), as a rustup nightly or in /usr/bin"
            );
            self.missing(what, "rustup toolchain install nightly --component rust-src");
            return;
        };
        let llvm = compiler.llvm;
        let found = match &self.machine.linker {
            None => "none is installed".to_owned(),
            Some(Linker { version, llvm: Some(other), .. }) => {
                format!("bpf-linker {version} here is for LLVM {other}")
            }
            Some(Linker { version, llvm: None, .. }) => {
                format!("bpf-linker {version} does not fit")
            }
        };
        let what = format!(
            "no linker for eBPF: {} takes a bpf-linker for LLVM {llvm}, and {found} (to compile \
             it, LLVM {llvm}'s development files are needed too)",
            compiler.display(),
        );
        self.missing(what, &linker_command(llvm).join(" "));
    }

    pub(super) fn object_lints(&mut self) {
        match self.compiler() {
            Some(compiler) if compiler.clippy => {}
            Some(Toolchain { rustup_name: Some(name), .. }) => {
                let command = ["rustup", "component", "add", "clippy", "--toolchain", name];
                let title = format!("Clippy for rustup's {name}");
                self.plan.steps.push(Step::new(title, "rustup-clippy", &command));
            }
            _ if self.machine.debian12 => self.packages_for(CLIPPY_PACKAGES),
            // `object` reports the missing compiler.
            None => {}
            Some(_) => self.missing(
                "no Clippy beside the compiler in /usr/bin".to_owned(),
                "rustup toolchain install nightly --component rust-src --component clippy",
            ),
        }
    }
}

fn linker_command(llvm: u32) -> Vec<&'static str> {
    let feature = match llvm {
        21 => "llvm-21",
        22 => "llvm-22",
        23 => "llvm-23",
        // This release supports no other LLVM; a later one may.
        _ => return vec!["cargo", "install", "bpf-linker"],
    };
    let mut command = vec!["cargo", "install", "bpf-linker", "--version", LINKER_VERSION];
    command.extend(["--no-default-features", "--features", feature, "--locked"]);
    command
}

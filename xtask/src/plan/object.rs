//! A compiler and a linker for the eBPF object, and its Clippy.

use super::draft::Draft;
use super::packages::{COMPILER_PACKAGES, DEBIAN_LLVM, LINKER_PACKAGES};
use super::step::Step;
use crate::machine::Machine;
use crate::toolchain::{Linker, OLDEST, Toolchain};

pub(super) const LINKER_VERSION: &str = "0.13.0";

/// The compiler and the linker that make the object, if they are there: rustup's nightly with the
/// sources of `core` first, which its owner has installed for such work; then `/usr/bin`.
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
            let absent: Vec<_> =
                LINKER_PACKAGES.iter().copied().filter(|it| !self.has_package(it)).collect();
            self.packages.extend(absent);
            let title = format!("bpf-linker {LINKER_VERSION}, compiled for LLVM {DEBIAN_LLVM}");
            let mut step = Step::new(title, "bpf-linker", &linker_command(DEBIAN_LLVM))
                .with("LLVM_PREFIX", format!("/usr/lib/llvm-{DEBIAN_LLVM}"));
            if linker.is_some() {
                step.command.push("--force".to_owned());
            }
            self.plan.steps.push(step);
        }
    }

    /// The one that makes the object once a linker is there.
    fn compiler(&self) -> Option<&Toolchain> {
        match object_tools(self.machine) {
            Some((compiler, _)) => Some(compiler),
            // The linker that is compiled here is for Debian's LLVM.
            None if self.machine.debian12 => {
                compilers(self.machine).find(|compiler| compiler.llvm == DEBIAN_LLVM)
            }
            None => compilers(self.machine).next(),
        }
    }

    /// Other systems have these by other names, or not at all.
    fn object_by_hand(&mut self) {
        let (major, minor) = OLDEST;
        let Some(compiler) = self.compiler() else {
            let what = format!(
                "no compiler for eBPF: it takes rustc {major}.{minor} or later with the sources \
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
            _ if self.machine.debian12 => self.packages_for(&["rust-web-clippy"]),
            // Without a compiler, that is what is said to be missing.
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
        // That release knows no other: a later one may.
        _ => return vec!["cargo", "install", "bpf-linker"],
    };
    let mut command = vec!["cargo", "install", "bpf-linker", "--version", LINKER_VERSION];
    command.extend(["--no-default-features", "--features", feature, "--locked"]);
    command
}

#[cfg(test)]
mod tests {
    use super::super::Plan;
    use super::super::sample::{bare, commands, complete, for_object, linker, nightly};
    use super::*;

    #[test]
    fn a_linker_of_another_version_or_llvm_is_replaced() {
        let older = Linker { version: "0.9.0".to_owned(), llvm: Some(20), ..linker() };
        let newer_llvm = Linker { llvm: Some(23), ..linker() };
        for linker in [older, newer_llvm] {
            let machine = Machine { linker: Some(linker), ..complete() };
            let [command] = commands(&for_object(&machine)).try_into().unwrap();
            assert!(command.contains("cargo install bpf-linker"), "{command}");
            assert!(command.ends_with("--force"), "{command}");
        }
    }

    #[test]
    fn a_nightly_with_sources_is_preferred_when_the_linker_fits() {
        let mut machine = Machine { nightlies: vec![nightly()], ..complete() };
        assert_eq!(object_tools(&machine).unwrap().0, &nightly());

        machine.nightlies[0].llvm = DEBIAN_LLVM + 1;
        assert_eq!(object_tools(&machine).unwrap().0.bin.to_str(), Some("/usr/bin"));

        machine.nightlies[0] = Toolchain { sources: false, ..nightly() };
        assert_eq!(object_tools(&machine).unwrap().0.bin.to_str(), Some("/usr/bin"));
    }

    #[test]
    fn with_a_fitting_nightly_debians_compiler_is_not_installed() {
        let machine = Machine { nightlies: vec![nightly()], ..bare() };
        let commands = commands(&for_object(&machine));
        assert!(!commands.iter().any(|command| command.contains("rustc-web")), "{commands:#?}");
        assert!(commands.iter().any(|command| command.contains("bpf-linker")), "{commands:#?}");
    }

    #[test]
    fn a_nightly_without_clippy_gets_it_from_rustup() {
        let nightlies = vec![Toolchain { clippy: false, ..nightly() }];
        let machine = Machine { nightlies, ..complete() };
        let expected = "rustup component add clippy --toolchain nightly";
        assert_eq!(commands(&for_object(&machine)), [expected]);
    }

    #[test]
    fn without_root_what_is_there_suffices_to_build() {
        let machine = Machine { root: false, ..complete() };
        assert_eq!(for_object(&machine), Plan::default());
    }

    #[test]
    fn another_system_is_told_what_to_install() {
        let machine = Machine { debian12: false, ..bare() };
        let found = for_object(&machine);
        assert_eq!(found.steps, []);
        let [missing] = found.missing.try_into().unwrap();
        assert_eq!(missing.command, "rustup toolchain install nightly --component rust-src");

        let machine = Machine { nightlies: vec![nightly()], ..machine };
        let [missing] = for_object(&machine).missing.try_into().unwrap();
        assert!(missing.what.contains("LLVM 22"), "{}", missing.what);
        assert!(missing.command.ends_with("--features llvm-22 --locked"), "{}", missing.command);
    }
}

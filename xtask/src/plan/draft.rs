//! A plan while it is made: what is found to be lacking, and, at the end, the order of what mends it.

use super::Plan;
use super::step::{Missing, Step};
use crate::machine::Machine;

/// What is known of a plan so far.
pub(super) struct Draft<'a> {
    pub(super) machine: &'a Machine,
    /// Debian packages to install, before anything else.
    pub(super) packages: Vec<&'static str>,
    pub(super) plan: Plan,
}

impl<'a> Draft<'a> {
    pub(super) fn new(machine: &'a Machine) -> Self {
        Self { machine, packages: Vec::new(), plan: Plan::default() }
    }

    /// Asks for the package of a program, unless this is there.
    pub(super) fn program(&mut self, program: &str, package: &'static str, there: bool) {
        if there {
            return;
        }
        if self.machine.debian12 {
            self.packages_for(&[package]);
        } else {
            let command = format!("sudo apt-get install {package}   # or as this system does it");
            self.missing(format!("`{program}` is not installed"), &command);
        }
    }

    pub(super) fn has_package(&self, name: &str) -> bool {
        self.machine.packages.contains(name)
    }

    /// Asks for packages because what they give is not there; if all are installed, they are too
    /// old, and installing them again brings the newest.
    pub(super) fn packages_for(&mut self, names: &[&'static str]) {
        let absent: Vec<_> = names.iter().copied().filter(|it| !self.has_package(it)).collect();
        self.packages.extend(if absent.is_empty() { names.to_vec() } else { absent });
    }

    /// Leaves something to a person.
    pub(super) fn missing(&mut self, what: String, command: &str) {
        self.plan.missing.push(Missing { what, command: command.to_owned() });
    }

    /// Packages come first: the other steps use what is in them.
    pub(super) fn finish(mut self) -> Plan {
        if self.packages.is_empty() {
            return self.plan;
        }
        let names = self.packages.join(" ");
        let install = ["apt-get", "install", "--yes", "--no-install-recommends"];
        if !self.machine.root {
            let what = format!("Debian packages are not installed: {names}");
            let command = format!("sudo apt-get update && sudo {} {names}", install.join(" "));
            self.missing(what, &command);
            return self.plan;
        }
        let mut update = Step::new("Debian's package lists", "apt-update", &["apt-get", "update"]);
        // One unreachable repository among many must not stop what the others have.
        update.may_fail = true;
        // Nothing of the machine's owner is removed, and another apt is waited for.
        let options = ["--no-remove", "-o", "DPkg::Lock::Timeout=300"];
        let command = [&install[..], &options[..], &self.packages[..]].concat();
        let title = format!("Debian packages: {names}");
        let install =
            Step::new(title, "apt-install", &command).with("DEBIAN_FRONTEND", "noninteractive");
        self.plan.steps.splice(0..0, [update, install]);
        self.plan
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample::{bare, commands, complete, for_object, toolchain};
    use crate::toolchain::Toolchain;

    #[test]
    fn only_absent_packages_are_asked_for() {
        let mut machine = bare();
        machine.packages.extend(["zlib1g-dev".to_owned(), "rustc-web".to_owned()]);
        let install = commands(&for_object(&machine)).remove(1);
        assert!(!install.contains("zlib1g-dev") && !install.contains("rustc-web"), "{install}");
        assert!(install.contains("cargo-web") && install.contains("libzstd-dev"), "{install}");
    }

    #[test]
    fn packages_that_are_installed_but_too_old_are_asked_for_again() {
        let mut machine = complete();
        machine.system = Some(Toolchain { release: (1, 85), ..toolchain("/usr/bin", None) });
        let install = commands(&for_object(&machine)).remove(1);
        assert!(install.ends_with("rustc-web cargo-web rust-web-src rust-web-clippy"), "{install}");
    }
}

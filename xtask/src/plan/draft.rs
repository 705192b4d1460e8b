//! Builds a plan: collects what the machine lacks, then orders the steps.

use super::step::{Missing, Plan, Step};
use crate::machine::Machine;
use crate::needs::Item;

pub(super) struct Draft<'a> {
    pub(super) machine: &'a Machine,
    /// Debian packages to install before all other steps.
    pub(super) packages: Vec<&'static str>,
    pub(super) plan: Plan,
}

impl<'a> Draft<'a> {
    pub(super) fn new(machine: &'a Machine) -> Self {
        Self { machine, packages: Vec::new(), plan: Plan::default() }
    }

    /// Adds a missing item.
    pub(super) fn item(&mut self, item: &Item) {
        match (item.package, item.hint) {
            (Some(package), _) if self.machine.debian12 => self.packages_for(&[package]),
            (_, Some((what, command))) => self.missing(what.to_owned(), command),
            (package, None) => {
                let package = package.unwrap_or(item.name);
                let command =
                    format!("sudo apt-get install {package}   # or as this system does it");
                self.missing(format!("`{}` is not installed", item.name), &command);
            }
        }
    }

    /// Adds packages because the machine lacks what they provide. If all are installed, they are
    /// too old; then installs them again for the newest version.
    pub(super) fn packages_for(&mut self, names: &[&'static str]) {
        let absent = self.absent(names);
        let wanted = if absent.is_empty() { names.to_vec() } else { absent };
        self.packages.extend(
            wanted.into_iter().filter(|it| !self.packages.contains(it)).collect::<Vec<_>>(),
        );
    }

    /// The packages that are not installed.
    pub(super) fn absent(&self, names: &[&'static str]) -> Vec<&'static str> {
        names.iter().copied().filter(|it| !self.machine.packages.contains(*it)).collect()
    }

    /// Adds something that a person must do.
    pub(super) fn missing(&mut self, what: String, command: &str) {
        self.plan.missing.push(Missing { what, command: command.to_owned() });
    }

    /// Puts packages first, as the other steps need them.
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
        // A repository that cannot be reached must not prevent installation from others.
        update.may_fail = true;
        // Removes no package, and waits for another apt.
        let options = ["--no-remove", "-o", "DPkg::Lock::Timeout=300"];
        let command = [&install[..], &options[..], &self.packages[..]].concat();
        let title = format!("Debian packages: {names}");
        let install =
            Step::new(title, "apt-install", &command).with("DEBIAN_FRONTEND", "noninteractive");
        self.plan.steps.splice(0..0, [update, install]);
        self.plan
    }
}

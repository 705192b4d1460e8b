//! rustfmt, Clippy and cargo-deny.

use super::draft::Draft;
use super::step::Step;

const DENY_VERSION: &str = "0.20.2";

impl Draft<'_> {
    pub(super) fn host_lints(&mut self) {
        let there = [("rustfmt", self.machine.rustfmt), ("clippy", self.machine.clippy)];
        let absent: Vec<&str> =
            there.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
        if absent.is_empty() {
            return;
        }
        let command = [&["rustup", "component", "add"], absent.as_slice()].concat();
        let names = absent.join(" and ");
        if self.machine.rustup {
            let title = format!("{names} for the default toolchain");
            self.plan.steps.push(Step::new(title, "rustup-components", &command));
        } else {
            let what = format!("the Rust toolchain comes without {names}, which rustup would add");
            self.missing(what, &command.join(" "));
        }
    }

    pub(super) fn deny(&mut self) {
        if !self.machine.deny {
            let title = format!("cargo-deny {DENY_VERSION}, which checks licences and sources");
            let command = [
                "cargo",
                "install",
                "cargo-deny",
                "--version",
                DENY_VERSION,
                "--locked",
                "--debug",
            ];
            self.plan.steps.push(
                Step::new(title, "cargo-deny", &command)
                    // Compiles sooner, and nobody steps through it.
                    .with("CARGO_PROFILE_DEV_DEBUG", "0"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::sample::{commands, complete};
    use super::super::{Need, plan};
    use crate::machine::Machine;

    #[test]
    fn absent_components_come_from_rustup_or_are_named() {
        let needs = BTreeSet::from([Need::HostLints]);
        let mut machine = Machine { rustfmt: false, clippy: false, ..complete() };
        assert_eq!(commands(&plan(&machine, &needs)), ["rustup component add rustfmt clippy"]);

        machine.rustup = false;
        let found = plan(&machine, &needs);
        assert_eq!(found.steps, []);
        assert!(found.missing[0].what.contains("rustfmt and clippy"), "{found:?}");
    }
}

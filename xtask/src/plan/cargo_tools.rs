//! rustfmt, Clippy and cargo-deny.

use super::draft::Draft;
use super::step::Step;

const DENY_VERSION: &str = "0.20.2";

impl Draft<'_> {
    pub(super) fn host_lints(&mut self) {
        let absent = &self.machine.lacks_components;
        if absent.is_empty() {
            return;
        }
        let command = [&["rustup", "component", "add"], absent.as_slice()].concat();
        let names = absent.join(" and ");
        if self.machine.rustup {
            let title = format!("{names} for the default toolchain");
            self.plan.steps.push(Step::new(title, "rustup-components", &command));
        } else {
            let what =
                format!("the Rust toolchain has no {names}, and there is no rustup to add it");
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
                    // Compiles faster; debug information is not needed.
                    .with("CARGO_PROFILE_DEV_DEBUG", "0"),
            );
        }
    }
}

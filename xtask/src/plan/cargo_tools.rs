//! rustfmt, Clippy, cargo-deny, cargo-auditable and mdbook.

use super::draft::Draft;
use super::step::Step;

const DENY_VERSION: &str = "0.20.2";
const AUDITABLE_VERSION: &str = "0.7.7";
const MDBOOK_VERSION: &str = "0.5.4";

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
            self.cargo_tool("cargo-deny", DENY_VERSION, "which checks licences and sources", &[]);
        }
    }

    pub(super) fn auditable(&mut self) {
        if !self.machine.auditable {
            let purpose = "which lists in a program what it is made of";
            self.cargo_tool("cargo-auditable", AUDITABLE_VERSION, purpose, &[]);
        }
    }

    pub(super) fn book(&mut self) {
        if !self.machine.mdbook {
            // Without its server, which takes twice as long to compile.
            let features = ["--no-default-features", "--features", "search"];
            let purpose = "which makes a site of Markdown";
            self.cargo_tool("mdbook", MDBOOK_VERSION, purpose, &features);
        }
    }

    fn cargo_tool(&mut self, name: &'static str, version: &str, purpose: &str, features: &[&str]) {
        let title = format!("{name} {version}, {purpose}");
        let command = ["cargo", "install", name, "--version", version, "--locked", "--debug"];
        let command = [&command[..], features].concat();
        // Compiles faster; debug information is not needed.
        let step = Step::new(title, name, &command).with("CARGO_PROFILE_DEV_DEBUG", "0");
        self.plan.steps.push(step);
    }
}

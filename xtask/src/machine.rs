//! The facts about this machine that a plan needs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::debian;
use crate::mounts::Mounts;
use crate::needs::{ITEMS, Need, packages};
use crate::process::quoted;
use crate::toolchain::{self, Linker, Toolchain};
use crate::workspace::{Workspace, find_cargo_program, find_program};

/// The facts. Inspects only what the needs require.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// How xtask was called.
    pub(crate) invocation: String,
    /// Whether the effective user is root.
    pub(crate) root: bool,
    /// Whether the system is Debian 12.
    pub(crate) debian12: bool,
    /// The Debian packages of [`packages`] that are installed.
    pub(crate) packages: BTreeSet<String>,
    /// The names of the missing [`ITEMS`].
    pub(crate) lacks: BTreeSet<&'static str>,
    /// Whether `rustup` is installed.
    pub(crate) rustup: bool,
    /// Which of `rustfmt` and `clippy` the compiler of the machine's own target lacks.
    pub(crate) lacks_components: Vec<&'static str>,
    /// rustup's nightly toolchains, newest first.
    pub(crate) nightlies: Vec<Toolchain>,
    /// The toolchain in `/usr/bin`.
    pub(crate) system: Option<Toolchain>,
    /// `bpf-linker`, if it runs.
    pub(crate) linker: Option<Linker>,
    /// Whether `cargo-deny` is installed.
    pub(crate) deny: bool,
    /// Whether `cargo-auditable` is installed.
    pub(crate) auditable: bool,
    /// Whether `mdbook` is installed.
    pub(crate) mdbook: bool,
    pub(crate) mounts: Mounts,
}

impl Machine {
    pub(crate) fn inspect(workspace: &Workspace, needs: &BTreeSet<Need>) -> Self {
        let compiles = needs.contains(&Need::Object) || needs.contains(&Need::ObjectLints);
        let debian12 = debian::is_12();
        let rustup = find_program("rustup");
        let host = host_folder(workspace);
        let has = |program: &str| host.as_ref().is_some_and(|bin| bin.join(program).is_file());
        let components =
            [("rustfmt", ["cargo-fmt", "rustfmt"]), ("clippy", ["cargo-clippy", "clippy-driver"])];
        let lacking = components.iter().filter(|(_, programs)| !programs.iter().all(|it| has(it)));
        let items = ITEMS.iter().filter(|item| needs.contains(&item.need));
        let arguments = std::env::args_os()
            .skip(1)
            .map(|argument| format!(" {}", quoted(&argument.to_string_lossy())));
        Self {
            invocation: format!("cargo xtask{}", arguments.collect::<String>()),
            root: rustix::process::geteuid().is_root(),
            debian12,
            packages: if debian12 { installed_packages() } else { BTreeSet::new() },
            lacks: items.filter(|item| !(item.is_there)(item.name)).map(|item| item.name).collect(),
            rustup: rustup.is_some(),
            lacks_components: lacking.map(|(name, _)| *name).collect(),
            nightlies: match rustup {
                Some(rustup) if compiles => toolchain::nightlies(&rustup),
                _ => Vec::new(),
            },
            system: compiles.then(|| Toolchain::inspect(Path::new("/usr/bin"), None)).flatten(),
            linker: find_cargo_program("bpf-linker").and_then(|path| Linker::inspect(&path)),
            deny: find_cargo_program("cargo-deny").is_some(),
            auditable: find_cargo_program("cargo-auditable").is_some(),
            mdbook: find_cargo_program("mdbook").is_some(),
            mounts: Mounts::find(),
        }
    }
}

/// The folder of the `cargo` for this machine, with its toolchain's other tools.
fn host_folder(workspace: &Workspace) -> Option<PathBuf> {
    let cargo = workspace.cargo_path();
    let path = if cargo.is_absolute() { cargo.to_path_buf() } else { find_program("cargo")? };
    Some(path.parent()?.to_path_buf())
}

fn installed_packages() -> BTreeSet<String> {
    // `dpkg-query` exits with 1 if it does not know a package, but prints the others.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\\n"])
        .args(packages())
        .stderr(Stdio::null())
        .output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    installed(&text.unwrap_or_default())
}

fn installed(text: &str) -> BTreeSet<String> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.filter(|(_, status)| *status == "installed").map(|(name, _)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_package_whose_settings_remain_is_not_installed() {
        let text = "rustc-web installed\nllvm-22-dev config-files\nbpftool not-installed\n";
        assert_eq!(installed(text), BTreeSet::from(["rustc-web".to_owned()]));
    }
}

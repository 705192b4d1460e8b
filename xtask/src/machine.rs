//! What this machine has, as far as a plan wants to know it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cluster_tools;
use crate::control_plane;
use crate::kube_proxy;
use crate::mounts::Mounts;
use crate::plan::Need;
use crate::process::quoted;
use crate::toolchain::{self, Linker, Toolchain};
use crate::virtual_machine;
use crate::workspace::{Workspace, find_cargo_program, find_program};

/// What was found. Only what the needs ask for is looked at; the rest is as on a bare machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    /// How xtask was called.
    pub(crate) invocation: String,
    /// The effective user is root.
    pub(crate) root: bool,
    /// Debian 12: the system whose packages are known to build everything.
    pub(crate) debian12: bool,
    /// The Debian packages of [`crate::plan::PACKAGES`] that are installed.
    pub(crate) packages: BTreeSet<String>,
    /// `rustup` is there.
    pub(crate) rustup: bool,
    /// The compiler of the machine's own target has `rustfmt`, `clippy`.
    pub(crate) rustfmt: bool,
    pub(crate) clippy: bool,
    /// rustup's nightly toolchains, newest first.
    pub(crate) nightlies: Vec<Toolchain>,
    /// The toolchain in `/usr/bin`.
    pub(crate) system: Option<Toolchain>,
    /// `bpf-linker`, if it runs.
    pub(crate) linker: Option<Linker>,
    /// `cargo-deny` is there.
    pub(crate) deny: bool,
    /// `ip`, `bpftool`, `nft`, `iptables` are there.
    pub(crate) ip: bool,
    pub(crate) bpftool: bool,
    pub(crate) nft: bool,
    pub(crate) iptables: bool,
    /// etcd and kube-apiserver are there.
    pub(crate) control_plane: bool,
    /// kube-proxy 1.20 is there.
    pub(crate) kube_proxy: bool,
    /// Debian's source packages can be downloaded and unpacked.
    pub(crate) debian_sources: bool,
    /// kubectl and Helm are there.
    pub(crate) cluster_tools: bool,
    /// Python's package installer is there; looked for only where it is needed.
    pub(crate) pip: bool,
    /// `buildah` is there.
    pub(crate) buildah: bool,
    /// Kernels and an emulator for them are there, or can be downloaded.
    pub(crate) virtual_machine: bool,
    /// `xz` is there.
    pub(crate) xz: bool,
    /// What is mounted.
    pub(crate) mounts: Mounts,
}

impl Machine {
    /// Looks at this machine.
    pub(crate) fn inspect(workspace: &Workspace, needs: &BTreeSet<Need>) -> Self {
        let compiles = needs.contains(&Need::Object) || needs.contains(&Need::ObjectLints);
        let debian12 = is_debian12(&fs::read_to_string("/etc/os-release").unwrap_or_default());
        let rustup = find_program("rustup");
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let host = host_folder(workspace);
        let has = |program: &str| host.as_ref().is_some_and(|bin| bin.join(program).is_file());
        let arguments = std::env::args_os()
            .skip(1)
            .map(|argument| format!(" {}", quoted(&argument.to_string_lossy())));
        Self {
            invocation: format!("cargo xtask{}", arguments.collect::<String>()),
            root: rustix::process::geteuid().is_root(),
            debian12,
            packages: if debian12 { installed_packages() } else { BTreeSet::new() },
            rustup: rustup.is_some(),
            rustfmt: has("cargo-fmt") && has("rustfmt"),
            clippy: has("cargo-clippy") && has("clippy-driver"),
            nightlies: match rustup {
                Some(rustup) if compiles => toolchain::nightlies(&rustup),
                _ => Vec::new(),
            },
            system: compiles.then(|| Toolchain::inspect(Path::new("/usr/bin"), None)).flatten(),
            linker: find_cargo_program("bpf-linker").and_then(|path| Linker::inspect(&path)),
            deny: find_cargo_program("cargo-deny").is_some(),
            ip: find_program("ip").is_some(),
            bpftool: find_program("bpftool").is_some(),
            nft: find_program("nft").is_some(),
            iptables: find_program("iptables").is_some(),
            control_plane: control_plane::is_there(),
            kube_proxy: kube_proxy::found().is_some(),
            debian_sources: control_plane::is_obtainable(),
            cluster_tools: cluster_tools::is_there(),
            pip: needs.contains(&Need::ClusterTools) && cluster_tools::is_obtainable(),
            buildah: find_program("buildah").is_some(),
            virtual_machine: virtual_machine::is_obtainable(debian12),
            xz: find_program("xz").is_some(),
            mounts: Mounts::of_mountinfo(&mountinfo),
        }
    }
}

/// The folder of the `cargo` that builds for this machine: what belongs to it lies beside it.
fn host_folder(workspace: &Workspace) -> Option<PathBuf> {
    let cargo = workspace.cargo_path();
    let path = if cargo.is_absolute() { cargo.to_path_buf() } else { find_program("cargo")? };
    Some(path.parent()?.to_path_buf())
}

/// From `/etc/os-release` (os-release(5)).
fn is_debian12(text: &str) -> bool {
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        value.map(|value| value.trim_matches('"'))
    };
    field("ID") == Some("debian") && field("VERSION_ID") == Some("12")
}

fn installed_packages() -> BTreeSet<String> {
    // It exits with 1 when it does not know one of the packages; what it knows it prints anyway.
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat", "${Package} ${db:Status-Status}\\n"])
        .args(crate::plan::PACKAGES)
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
    fn debian_12_is_told_from_its_relatives() {
        assert!(is_debian12("PRETTY_NAME=\"Debian\"\nVERSION_ID=\"12\"\nID=debian\n"));
        assert!(!is_debian12("VERSION_ID=\"13\"\nID=debian\n"));
        assert!(!is_debian12("VERSION_ID=\"12\"\nID=devuan\nID_LIKE=debian\n"));
        assert!(!is_debian12(""));
    }

    #[test]
    fn a_removed_package_whose_settings_remain_is_not_installed() {
        let text = "rustc-web installed\nllvm-22-dev config-files\nbpftool not-installed\n";
        assert_eq!(installed(text), BTreeSet::from(["rustc-web".to_owned()]));
    }
}

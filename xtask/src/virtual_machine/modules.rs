//! Kernel modules: which, and their content.

use fs_err as fs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use walkdir::WalkDir;

/// Modules for the suites: the lab's devices, the clsact discipline and its filters, `sock_diag`.
/// Each comes after those that it depends on, on all lines of kernels.
const WANTED: [&str; 11] = [
    "veth",
    "llc",
    "stp",
    "bridge",
    "dummy",
    "tun",
    "sch_ingress",
    "cls_bpf",
    "inet_diag",
    "udp_diag",
    "tcp_diag",
];

/// A module to load.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: &'static str,
    pub(super) content: Vec<u8>,
}

/// The modules of [`WANTED`] that are not built in.
///
/// # Errors
/// The kernel has one of them neither as a module nor built in.
pub(super) fn wanted(folder: &Path) -> Result<Vec<Module>> {
    let entries = WalkDir::new(folder.join("kernel")).into_iter().collect::<Result<Vec<_>, _>>()?;
    let files = entries.into_iter().filter(|entry| entry.file_type().is_file());
    let files: BTreeMap<String, PathBuf> =
        files.map(|entry| (name_of(entry.path()), entry.into_path())).collect();
    let built_in = fs::read_to_string(folder.join("modules.builtin"))?;
    let is_built_in = |name: &str| built_in.lines().any(|line| name_of(Path::new(line)) == name);
    let mut modules = Vec::new();
    for name in WANTED {
        match files.get(name) {
            Some(path) => modules.push(Module { name, content: read(path)? }),
            None => ensure!(
                is_built_in(name),
                "the kernel has no module {name} in {}",
                folder.display()
            ),
        }
    }
    Ok(modules)
}

/// `net/sched/cls-bpf.ko.xz` has the name `cls_bpf`.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().replace('-', "_")
}

/// The content of a module's file; Debian 13's are compressed.
fn read(path: &Path) -> Result<Vec<u8>> {
    if path.extension().is_some_and(|end| end == "xz") {
        let output = Command::new("xz").arg("-dc").arg(path).output().context("cannot run `xz`")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cannot unpack {}: {said}", path.display());
        return Ok(output.stdout);
    }
    Ok(fs::read(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_called_as_the_kernel_calls_it() {
        assert_eq!(name_of(Path::new("kernel/net/sched/cls-bpf.ko.xz")), "cls_bpf");
        assert_eq!(name_of(Path::new("kernel/drivers/net/veth.ko")), "veth");
    }
}

//! Kernel modules: their dependencies and their content.

use fs_err as fs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use walkdir::WalkDir;

/// Modules for the suites: the lab's devices, the clsact discipline and its filters, `sock_diag`.
const WANTED: [&str; 8] =
    ["veth", "bridge", "dummy", "tun", "sch_ingress", "cls_bpf", "udp_diag", "tcp_diag"];

/// A module to load.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// The modules of [`WANTED`] and their dependencies, each after its own dependencies.
///
/// # Errors
/// The kernel has one of them neither as a module nor built in.
pub(super) fn wanted(folder: &Path) -> Result<Vec<Module>> {
    let entries = WalkDir::new(folder.join("kernel")).into_iter().collect::<Result<Vec<_>, _>>()?;
    let files = entries.into_iter().filter(|entry| entry.file_type().is_file());
    let files: BTreeMap<String, PathBuf> =
        files.map(|entry| (name_of(entry.path()), entry.into_path())).collect();
    let list = folder.join("modules.builtin");
    let built_in = fs::read_to_string(&list)?;
    let built_in: Vec<String> = built_in.lines().map(|line| name_of(Path::new(line))).collect();

    let mut contents = BTreeMap::new();
    let order = in_order(&WANTED, |name| {
        let Some(path) = files.get(name) else {
            ensure!(
                built_in.iter().any(|other| other == name),
                "the kernel has no module {name} in {}",
                folder.display()
            );
            return Ok(None);
        };
        let content = read(path)?;
        let depends = depends(&content);
        contents.insert(name.to_owned(), content);
        Ok(Some(depends))
    })?;
    let take = |name: String| {
        let content = contents.remove(&name)?;
        Some(Module { name, content })
    };
    Ok(order.into_iter().filter_map(take).collect())
}

/// The names and their dependencies, dependencies first, without built-in ones (`depends`: `None`).
fn in_order(
    wanted: &[&str],
    mut depends: impl FnMut(&str) -> Result<Option<Vec<String>>>,
) -> Result<Vec<String>> {
    fn visit(
        name: &str,
        depends: &mut impl FnMut(&str) -> Result<Option<Vec<String>>>,
        order: &mut Vec<String>,
    ) -> Result<()> {
        if order.iter().any(|other| other == name) {
            return Ok(());
        }
        let Some(others) = depends(name)? else { return Ok(()) };
        for other in others {
            visit(&other, depends, order)?;
        }
        order.push(name.to_owned());
        Ok(())
    }
    let mut order = Vec::new();
    for name in wanted {
        visit(name, &mut depends, &mut order)?;
    }
    Ok(order)
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

/// The dependencies in a module's `.modinfo`, a list of zero-terminated strings.
fn depends(content: &[u8]) -> Vec<String> {
    const FIELD: &[u8] = b"\0depends=";
    let Some(place) = content.windows(FIELD.len()).position(|bytes| bytes == FIELD) else {
        return Vec::new();
    };
    let rest = &content[place + FIELD.len()..];
    let value = rest.split(|byte| *byte == 0).next().unwrap_or_default();
    let names = value.split(|byte| *byte == b',').filter(|name| !name.is_empty());
    names.map(|name| String::from_utf8_lossy(name).replace('-', "_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_comes_after_those_that_it_depends_on_and_once() {
        let depends = |name: &str| {
            let others: &[&str] = match name {
                "bridge" => &["stp", "llc"],
                "stp" => &["llc"],
                "llc" | "veth" => &[],
                "ipv6" => return Ok(None),
                "tun" => &["ipv6"],
                other => anyhow::bail!("no module {other}"),
            };
            Ok(Some(others.iter().map(|&other| other.to_owned()).collect()))
        };
        let order = in_order(&["veth", "bridge", "llc", "tun"], depends).unwrap();
        assert_eq!(order, ["veth", "llc", "stp", "bridge", "tun"]);
        let error = in_order(&["netem"], depends).unwrap_err();
        assert_eq!(error.to_string(), "no module netem");
    }

    #[test]
    fn a_module_says_what_it_depends_on() {
        let content = b"\x7fELF\0license=GPL\0depends=stp,nf-conntrack\0retpoline=Y\0";
        assert_eq!(depends(content), ["stp", "nf_conntrack"]);
        assert!(depends(b"\0license=GPL\0depends=\0name=veth\0").is_empty());
        assert!(depends(b"").is_empty());
    }

    #[test]
    fn a_module_is_called_as_the_kernel_calls_it() {
        assert_eq!(name_of(Path::new("kernel/net/sched/cls-bpf.ko.xz")), "cls_bpf");
        assert_eq!(name_of(Path::new("kernel/drivers/net/veth.ko")), "veth");
    }
}

//! Kernel modules: which, and their content.

use fs_err as fs;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use walkdir::WalkDir;

/// Modules for the suites: checksums, the lab's devices, the clsact discipline and its filters, `sock_diag`,
/// nftables (an agent that cannot list its chains gives clients outside no source) with what masquerades,
/// overlays, devices of an uplink, and the machine's cards.
const WANTED: [&str; 27] = [
    "crc32c_generic",
    "veth",
    "bridge",
    "dummy",
    "tun",
    "sch_ingress",
    "cls_bpf",
    "udp_diag",
    "tcp_diag",
    "nf_tables",
    "nft_chain_nat",
    "nft_masq",
    "vxlan",
    "geneve",
    "ipip",
    "wireguard",
    "ipvlan",
    "esp4",
    "xfrm_user",
    "authenc",
    "echainiv",
    "cbc",
    "sha3_generic",
    "jitterentropy_rng",
    "drbg",
    "virtio_pci",
    "virtio_net",
];

/// Linux 7 has none of these any more. `jitterentropy_rng` of 6.1 takes the second without saying so.
const GONE: [&str; 3] = ["crc32c_generic", "drbg", "sha3_generic"];

/// A module to load.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) content: Vec<u8>,
}

/// The modules of [`WANTED`] that are not built in, each after those that it depends on: other ones on each line of
/// kernels.
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
    let mut modules: Vec<Module> = Vec::new();
    let mut open: Vec<String> = WANTED.into_iter().rev().map(str::to_owned).collect();
    while let Some(name) = open.pop() {
        if modules.iter().any(|it| it.name == name) {
            continue;
        }
        let Some(path) = files.get(&name) else {
            let place = folder.display();
            ensure!(
                is_built_in(&name) || GONE.contains(&name.as_str()),
                "the kernel has no module {name} in {place}"
            );
            continue;
        };
        let content = read(path)?;
        let mut missing = depends(&content);
        missing.retain(|it| !is_built_in(it) && modules.iter().all(|module| module.name != *it));
        if missing.is_empty() {
            modules.push(Module { name, content });
        } else {
            open.push(name);
            open.extend(missing);
        }
    }
    Ok(modules)
}

/// The modules that a module's file says it depends on.
fn depends(content: &[u8]) -> Vec<String> {
    const KEY: &[u8] = b"\0depends=";
    let Some(at) = content.windows(KEY.len()).position(|it| it == KEY) else { return Vec::new() };
    let text = content[at + KEY.len()..].split(|byte| *byte == 0).next().unwrap_or_default();
    let names = std::str::from_utf8(text).unwrap_or_default().split(',');
    names.filter(|name| !name.is_empty()).map(|name| name.replace('-', "_")).collect()
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
    fn a_module_says_what_it_depends_on() {
        let of = |text: &str| depends(text.as_bytes()).join(" ");
        assert_eq!(of("\x7fELF\0license=GPL\0depends=stp,llc\0name=bridge\0"), "stp llc");
        assert_eq!(
            of("a\0depends=ip6_udp_tunnel,libcurve25519-generic\0"),
            "ip6_udp_tunnel libcurve25519_generic"
        );
        assert_eq!(of("license=GPL\0depends=\0name=dummy\0"), "");
        assert_eq!(of("a program"), "");
    }

    #[test]
    fn a_module_is_called_as_the_kernel_calls_it() {
        assert_eq!(name_of(Path::new("kernel/net/sched/cls-bpf.ko.xz")), "cls_bpf");
        assert_eq!(name_of(Path::new("kernel/drivers/net/veth.ko")), "veth");
    }
}

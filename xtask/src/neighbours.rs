//! Programs that share nodes with topo-lb, for the suite `neighbours`: those of the folder that `TOPO_LB_NEIGHBOURS` names,
//! or else Debian 12's, unpacked in the user's cache. Installed, some would start services on this machine.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cache;
use crate::debian::{self, Archive, entries};
use crate::given;
use crate::progress;
use crate::workspace::{Workspace, path_from};

/// The variable that names a folder with the packages' files, as in the root of a system.
pub(crate) const VARIABLE: &str = "TOPO_LB_NEIGHBOURS";

/// Files by which a folder is known to be one.
const FILES: [&str; 2] = ["usr/lib/cni/bridge", "usr/sbin/haproxy"];

/// The packages, and what the suite takes them for.
const PACKAGES: [(&str, &str); 14] = [
    ("containernetworking-plugins", "the reference plugins of CNI"),
    ("wireguard-go", "a VPN between nodes, also where the kernel has no WireGuard"),
    ("wireguard-tools", "wg, which sets it up"),
    ("strongswan-charon", "IPsec between nodes: the key exchange"),
    ("libcharon-extra-plugins", "IPsec in user space, where the kernel has no ESP"),
    ("strongswan-swanctl", "swanctl, which sets it up"),
    ("firewalld", "a firewall by nftables"),
    ("ufw", "a firewall by iptables"),
    ("docker.io", "Docker's rules and bridge, by dockerd"),
    ("nginx-light", "an ingress"),
    ("haproxy", "another ingress"),
    ("unbound", "a DNS cache on each node"),
    ("openvswitch-switch", "pods behind a switch in user space"),
    ("xdp-tools", "a firewall by XDP, and libxdp's dispatcher"),
];

/// The name in the user's cache.
const NAME: &str = "neighbours-bookworm";

/// Whether the environment names the folder, or the cache has it.
pub(crate) fn are_there() -> bool {
    path_from(VARIABLE).is_some() || cache::has(NAME)
}

/// The folder with the files. Downloads them if necessary.
///
/// # Errors
/// The folder that the environment names lacks one, or the download fails.
pub(crate) fn files(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(folder) = given::folder(VARIABLE, &FILES)? {
        return Ok(folder);
    }
    let folder = cache::folder(NAME)?;
    cache::make_once(&folder, |room| {
        let path = folder.display();
        progress::note(&format!("neighbours are unpacked, not installed, once: {path}"));
        let archive = Archive::open(workspace, room, "neighbours", &debian::sources("bookworm"))?;
        let names = PACKAGES.map(|(name, _)| name);
        let packages = archive.download_with_dependencies("neighbours from Debian", &names)?;
        let root = room.join("root");
        archive.unpack("unpacking neighbours", &packages, &root)?;
        for place in ["bin", "sbin", "lib", "lib64"] {
            merge(&root.join(place), &root.join("usr").join(place))?;
        }
        Ok(root)
    })?;
    Ok(folder)
}

/// Moves what is in a folder into another one: on Debian 12, `/lib` is `/usr/lib`, but packages name both.
fn merge(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(to)?;
    for entry in entries(from)? {
        let place = to.join(entry.file_name().unwrap_or_default());
        if entry.is_dir() && !entry.is_symlink() && place.is_dir() {
            merge(&entry, &place)?;
        } else {
            fs::rename(&entry, &place)?;
        }
    }
    Ok(fs::remove_dir(from)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_packages_have_in_lib_and_in_usr_lib_is_in_one_folder() {
        let root = tempfile::tempdir().unwrap();
        let (lib, usr) = (root.path().join("lib"), root.path().join("usr/lib"));
        for path in [lib.join("ufw"), lib.join("both"), usr.join("both")] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(lib.join("both/one"), "").unwrap();
        fs::write(usr.join("both/other"), "").unwrap();
        merge(&lib, &usr).unwrap();
        assert!(!lib.exists() && usr.join("ufw").is_dir());
        assert!(usr.join("both/one").is_file() && usr.join("both/other").is_file());
        merge(&lib, &usr).unwrap();
    }
}

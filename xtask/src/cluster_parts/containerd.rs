//! containerd, runc and CNI plugins: those of the folder that `TOPO_LB_CONTAINERD` names, or else
//! Debian 12's, unpacked in the user's cache.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::cache;
use crate::debian::{self, Archive, entries};
use crate::given;
use crate::progress;
use crate::workspace::Workspace;

/// The variable that names a folder with the programs.
pub(super) const VARIABLE: &str = "TOPO_LB_CONTAINERD";

/// What a cluster needs. The plugins are in the same folder as the other programs.
const PROGRAMS: [&str; 8] = [
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "runc",
    "ptp",
    "host-local",
    "loopback",
    "portmap",
];

/// The packages. A library is among them, as runc needs it and the machine may lack it; all of them
/// run with the C library of Debian 12 and later ones.
const PACKAGES: [&str; 4] = ["containerd", "runc", "containernetworking-plugins", "libseccomp2"];

/// The name in the user's cache.
const NAME: &str = "containerd-1.6.20";

/// The folder with the programs, and with the libraries that they need. Downloads them if necessary.
///
/// # Errors
/// The folder that the environment names lacks one, or the download fails.
pub(super) fn programs(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(folder) = given::folder(VARIABLE, &PROGRAMS)? {
        return Ok(folder);
    }
    let folder = cache::folder(NAME)?;
    cache::make_once(&folder, |room| {
        progress::note(&format!(
            "containerd is unpacked, not installed, once: {}",
            folder.display()
        ));
        let archive = Archive::open(workspace, room, "containerd", &debian::sources("bookworm"))?;
        let (packages, root) = (room.join("packages"), room.join("root"));
        fs::create_dir_all(&packages)?;
        archive.download("containerd, runc and CNI plugins from Debian", &PACKAGES, &packages)?;
        archive.unpack("unpacking containerd", &packages, &root)?;
        collect(&root, &room.join("programs"))
    })?;
    Ok(folder)
}

/// Moves all programs and libraries into one folder.
fn collect(root: &Path, programs: &Path) -> Result<PathBuf> {
    fs::create_dir_all(programs)?;
    let libraries = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    for place in ["usr/bin", "usr/sbin", "usr/lib/cni", &libraries] {
        for file in entries(&root.join(place))? {
            fs::rename(&file, programs.join(file.file_name().unwrap_or_default()))?;
        }
    }
    Ok(programs.to_owned())
}

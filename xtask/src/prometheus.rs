//! Prometheus and promtool for the tests: those of the folder that `TOPO_LB_PROMETHEUS` names, or else
//! Debian 12's, unpacked in the user's cache.

use fs_err as fs;
use std::path::PathBuf;

use anyhow::Result;

use crate::cache;
use crate::debian::{self, Archive};
use crate::given;
use crate::progress;
use crate::workspace::{Workspace, path_from};

/// The variable that names a folder with the programs.
pub(crate) const VARIABLE: &str = "TOPO_LB_PROMETHEUS";

/// They link only the C library of Debian 12 and later ones.
const PROGRAMS: [&str; 2] = ["prometheus", "promtool"];

/// The name in the user's cache.
const NAME: &str = "prometheus-2.42.0";

/// Whether the environment names the programs, or the cache has them.
pub(crate) fn is_there() -> bool {
    path_from(VARIABLE).is_some() || cache::has(NAME)
}

/// The folder with the programs. Downloads them if necessary.
///
/// # Errors
/// The folder that the environment names lacks one, or the download fails.
pub(crate) fn programs(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(folder) = given::folder(VARIABLE, &PROGRAMS)? {
        return Ok(folder);
    }
    let folder = cache::folder(NAME)?;
    cache::make_once(&folder, |room| {
        progress::note(&format!(
            "Prometheus is unpacked, not installed, once: {}",
            folder.display()
        ));
        let archive = Archive::open(workspace, room, "prometheus", &debian::sources("bookworm"))?;
        let (packages, root) = (room.join("packages"), room.join("root"));
        fs::create_dir_all(&packages)?;
        archive.download("Prometheus from Debian", &["prometheus"], &packages)?;
        archive.unpack("unpacking Prometheus", &packages, &root)?;
        Ok(root.join("usr/bin"))
    })?;
    Ok(folder)
}

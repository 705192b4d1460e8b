//! kube-proxy 1.20 for the bench's comparison (tests do not need it): the one that the environment
//! names, or else Kubernetes 1.20 from Debian's archive, compiled once into the user's cache.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::cache;
use crate::cluster_parts::kubernetes;
use crate::debian_kubernetes::{Build, VERSION};
use crate::progress;
use crate::workspace::{Workspace, path_from};

/// The variable that names the program, in xtask and in the bench.
pub(crate) const VARIABLE: &str = "TOPO_LB_KUBE_PROXY";

/// The program, if the environment names it or the cache has it.
pub(crate) fn found() -> Option<PathBuf> {
    // The folder of a cluster's programs has it, too.
    let cached = [cache::folder(&name()), kubernetes::cached()].into_iter().flatten();
    let mut cached = cached.map(|folder| folder.join("kube-proxy"));
    path_from(VARIABLE).or_else(|| cached.find(|it| it.is_file()))
}

/// The program. Builds it if necessary.
///
/// # Errors
/// The environment names a file that does not exist, or the build fails.
pub(crate) fn program(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(program) = found() {
        ensure!(program.is_file(), "there is no {}, which {VARIABLE} names", program.display());
        return Ok(program);
    }
    let folder = cache::folder(&name())?;
    cache::make_once(&folder, |room| {
        progress::note(&format!("kube-proxy {VERSION} is built from Debian's source, once, into"));
        progress::note(&format!("{}; {VARIABLE} names one instead", folder.display()));
        Build::new(workspace, room, "kube-proxy").kube_proxy()
    })?;
    Ok(folder.join("kube-proxy"))
}

/// The name in the user's cache.
fn name() -> String {
    format!("kube-proxy-{VERSION}")
}

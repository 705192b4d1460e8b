//! etcd, kube-apiserver and kube-controller-manager for the tests: the ones that
//! `KUBEBUILDER_ASSETS` names, or else Kubernetes 1.20 from Debian's archive, built once into the
//! user's cache.
//!
//! 1.20 covers the most cases: it has `spec.topologyKeys`, and EndpointSlices of
//! `discovery.k8s.io/v1beta1` with only `topology`. For later versions, name a folder.

use std::path::PathBuf;

use anyhow::Result;

use crate::cache;
use crate::debian;
use crate::debian_kubernetes::{Build, VERSION};
use crate::given;
use crate::kubernetes;
use crate::progress;
use crate::workspace::{Workspace, find_program, path_from};

/// The usual variable for a folder of test binaries.
pub(crate) const VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// Required programs. The lab's suite also needs kube-controller-manager, and reports its absence.
const PROGRAMS: [&str; 2] = ["etcd", "kube-apiserver"];

/// Whether the environment names the programs, or the cache has them.
pub(crate) fn is_there() -> bool {
    path_from(VARIABLE).is_some() || cached().is_ok_and(|it| it.is_dir())
}

/// Whether they can be built from Debian's archive: with Debian's tools, without root.
pub(crate) fn is_obtainable() -> bool {
    debian::is_obtainable() && find_program("dpkg-source").is_some()
}

/// The folder with the programs. Builds them if necessary.
///
/// # Errors
/// The folder that the environment names lacks one, or the build fails.
pub(crate) fn programs(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(folder) = given::folder(VARIABLE, &PROGRAMS)? {
        progress::note(&format!("control plane of {VARIABLE}: {}", folder.display()));
        return Ok(folder);
    }
    let folder = cached()?;
    cache::make_once(&folder, |room| {
        progress::note(&format!("Kubernetes {VERSION} is built from Debian's source, once, into"));
        progress::note(&format!("{}; {VARIABLE} names a folder instead", folder.display()));
        Build::new(workspace, room, "control-plane").control_plane()
    })?;
    Ok(folder)
}

/// The folder in the user's cache; that of a cluster's programs has these, too.
fn cached() -> Result<PathBuf> {
    let (own, cluster) = (cache::folder(&format!("kubernetes-{VERSION}"))?, kubernetes::cached()?);
    Ok(if !own.is_dir() && cluster.is_dir() { cluster } else { own })
}

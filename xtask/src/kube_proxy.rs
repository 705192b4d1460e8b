//! kube-proxy 1.20 for the bench's comparison (tests do not need it): the one that the environment
//! names, or else Kubernetes 1.20 from Debian's archive, compiled once into the user's cache.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cache;
use crate::debian_kubernetes::{Build, VERSION};
use crate::kubernetes;
use crate::process::output_of;
use crate::progress;
use crate::summary::Outcome;
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

/// What of a run is not checked with this program in the parts of a cluster: the bench takes 1.20, with
/// Service Topology.
///
/// # Errors
/// It does not tell its version.
pub(crate) fn not_compared(program: &Path) -> Result<Option<Outcome>> {
    let said = output_of(Command::new(program).arg("--version"))
        .with_context(|| format!("`{} --version` failed", program.display()))?;
    let version = said.trim().rsplit(" v").next().unwrap_or_default();
    let text =
        format!("bench beside kube-proxy NOT run: it takes 1.20, and the parts have {version}");
    Ok((!version.starts_with("1.20.")).then_some(Outcome::Unchecked(text)))
}

/// The name in the user's cache.
fn name() -> String {
    format!("kube-proxy-{VERSION}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use fs_err as fs;

    use super::*;

    #[test]
    fn a_kube_proxy_that_the_bench_does_not_take_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("kube-proxy");
        let said = |version: &str| {
            fs::write(&program, format!("#!/bin/sh\necho Kubernetes v{version}\n")).unwrap();
            fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
            not_compared(&program).unwrap()
        };
        assert_eq!(said("1.20.2"), None);
        let text = "bench beside kube-proxy NOT run: it takes 1.20, and the parts have 1.36.2";
        assert_eq!(said("1.36.2"), Some(Outcome::Unchecked(text.to_owned())));
        assert!(not_compared(&folder.path().join("none")).is_err());
    }
}

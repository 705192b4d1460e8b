//! etcd, kube-apiserver and kube-controller-manager for the tests: those that `KUBEBUILDER_ASSETS`
//! names, or else Kubernetes 1.20 from Debian's archive, built once and kept outside of the
//! repository.
//!
//! 1.20 is the version that tells most: it serves `spec.topologyKeys`, and EndpointSlices of
//! `discovery.k8s.io/v1beta1` with `topology` alone. Later versions are tried by naming a folder.

use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::debian_kubernetes::{Build, VERSION};
use crate::progress::Screen;
use crate::workspace::{Workspace, cache_folder, find_program};

/// The ecosystem's variable for a folder of test binaries.
pub(crate) const VARIABLE: &str = "KUBEBUILDER_ASSETS";

/// What must be in the folder; kube-controller-manager too, for the suite in the lab, which says
/// so where it is not.
const PROGRAMS: [&str; 2] = ["etcd", "kube-apiserver"];

/// What the archive is trusted by.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Whether the programs are there already, or named by the environment.
pub(crate) fn is_there() -> bool {
    given().is_some() || cache().is_some_and(|folder| folder.is_dir())
}

/// Whether this machine can take them from Debian's archive: that takes Debian's tools, but
/// neither root nor an installation.
pub(crate) fn is_obtainable() -> bool {
    ["apt-get", "dpkg-deb", "dpkg-source"].iter().all(|it| find_program(it).is_some())
        && Path::new(KEYRING).is_file()
}

/// The folder with the programs, which are built where that was never done.
///
/// # Errors
/// The folder that the environment names lacks one, or the build fails.
pub(crate) fn programs(workspace: &Workspace, screen: &Screen) -> Result<PathBuf> {
    if let Some(folder) = given() {
        complete(&folder)?;
        screen.note(&format!("control plane of {VARIABLE}: {}", folder.display()));
        return Ok(folder);
    }
    let folder = cache().context("neither XDG_CACHE_HOME nor HOME says where caches go")?;
    if !folder.is_dir() {
        build(workspace, screen, &folder)?;
    }
    complete(&folder)?;
    Ok(folder)
}

/// Builds beside the folder, and puts it in place when it is whole. What was downloaded or compiled
/// before a failure is kept for the next attempt.
fn build(workspace: &Workspace, screen: &Screen, folder: &Path) -> Result<()> {
    let (lock, work) = (beside(folder, ".lock"), beside(folder, ".building"));
    fs::create_dir_all(&work).with_context(|| format!("cannot make {}", work.display()))?;
    let file = File::create(&lock).with_context(|| format!("cannot write {}", lock.display()))?;
    if file.try_lock().is_err() {
        screen.note(&format!("another cargo xtask builds Kubernetes in {}", work.display()));
        file.lock().with_context(|| format!("cannot lock {}", lock.display()))?;
    }
    if folder.is_dir() {
        return Ok(());
    }
    screen.note(&format!("Kubernetes {VERSION} is built from Debian's source, once, into"));
    screen.note(&format!("{}; {VARIABLE} names a folder instead", folder.display()));
    let programs = Build::new(workspace, screen, &work).run()?;
    fs::rename(&programs, folder)
        .with_context(|| format!("cannot put {} in place", folder.display()))?;
    fs::remove_dir_all(&work).with_context(|| format!("cannot remove {}", work.display()))
}

fn complete(folder: &Path) -> Result<()> {
    for program in PROGRAMS {
        ensure!(
            folder.join(program).is_file(),
            "there is no {program} in {}: name a folder that has {} in {VARIABLE}, or unset it",
            folder.display(),
            PROGRAMS.join(" and "),
        );
    }
    Ok(())
}

fn given() -> Option<PathBuf> {
    env::var_os(VARIABLE).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

fn cache() -> Option<PathBuf> {
    Some(cache_folder()?.join(format!("kubernetes-{VERSION}")))
}

/// The path with something added to its name.
fn beside(folder: &Path, end: &str) -> PathBuf {
    let mut path = folder.as_os_str().to_owned();
    path.push(end);
    path.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_lacks_a_program_is_refused_by_name() {
        let folder = env::temp_dir().join(format!("xtask-assets-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("etcd"), "").unwrap();
        let error = complete(&folder).unwrap_err().to_string();
        assert!(error.contains("no kube-apiserver") && error.contains(VARIABLE), "{error}");
        fs::write(folder.join("kube-apiserver"), "").unwrap();
        complete(&folder).unwrap();
        fs::remove_dir_all(folder).unwrap();
    }
}

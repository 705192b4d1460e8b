//! The programs of a Kubernetes cluster: those of the folder that `TOPO_LB_KUBERNETES` names, or
//! else Kubernetes 1.20 from Debian's archive, built once into the user's cache.

use fs_err as fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};

use crate::cache;
use crate::debian_kubernetes::{Build, VERSION};
use crate::given;
use crate::process::{display, output_of};
use crate::progress;
use crate::workspace::{Workspace, path_from};

/// The variable that names a folder with the programs.
pub(crate) const VARIABLE: &str = "TOPO_LB_KUBERNETES";

/// What a cluster needs.
const PROGRAMS: [&str; 6] = [
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubelet",
    "kube-proxy",
];

/// Whether the environment names the programs, or the cache has them.
pub(crate) fn is_there() -> bool {
    path_from(VARIABLE).is_some() || cached().is_ok_and(|it| it.is_dir())
}

/// The folder with the programs. Builds them if necessary.
///
/// # Errors
/// The folder that the environment names lacks one, or the build fails.
pub(crate) fn programs(workspace: &Workspace) -> Result<PathBuf> {
    match given::folder(VARIABLE, &PROGRAMS)? {
        Some(folder) => Ok(folder),
        None => built(workspace),
    }
}

/// The folder with Kubernetes' own tests, `e2e.test`, and the kubectl that they call. Builds them
/// if necessary.
///
/// # Errors
/// The folder that the environment names lacks one, or the build fails.
pub(crate) fn tests(workspace: &Workspace) -> Result<PathBuf> {
    if let Some(folder) = given::folder(VARIABLE, &PROGRAMS)? {
        for program in ["e2e.test", "kubectl"] {
            ensure!(
                folder.join(program).is_file(),
                "there is no {program} in {}, which {VARIABLE} names: Kubernetes' tests are needed in \
                 the cluster's version",
                folder.display()
            );
        }
        return Ok(folder);
    }
    let folder = cache::folder(&format!("kubernetes-e2e-{VERSION}"))?;
    let compile = |room: &Path| Build::new(workspace, room, "e2e").tests();
    if !folder.is_dir() {
        // To compile them with the cluster's programs takes less time than to compile them alone.
        cache::make_once(&cached()?, |room| {
            let programs = build(workspace, room)?;
            cache::make_once(&folder, |_| compile(room))?;
            Ok(programs)
        })?;
    }
    cache::make_once(&folder, compile)?;
    Ok(folder)
}

/// Kubernetes' own tests in the folder that the environment names.
#[derive(Debug)]
pub(crate) struct Tests {
    /// Their version: `1.36.1`.
    pub(crate) version: String,
    /// The names of their images, one a line.
    pub(crate) images: String,
}

/// Those of the folder that the environment names, if it has them: a cluster can be without.
///
/// # Errors
/// They do not say what their images are.
pub(crate) fn given_tests(workspace: &Workspace) -> Result<Option<Tests>> {
    let Some(folder) = path_from(VARIABLE).filter(|it| it.join("e2e.test").is_file()) else {
        return Ok(None);
    };
    let said = |program: &str, flag: &str| {
        let mut command = workspace.command(folder.join(program));
        output_of(command.arg(flag)).with_context(|| format!("`{}` failed", display(&command)))
    };
    let version = said("kubelet", "--version")?;
    let version = version.trim().rsplit(" v").next().unwrap_or_default().to_owned();
    Ok(Some(Tests { version, images: said("e2e.test", "--list-images")? }))
}

/// The folder in the cache, which also has the programs of the images. Builds them if necessary.
pub(crate) fn built(workspace: &Workspace) -> Result<PathBuf> {
    let folder = cached()?;
    cache::make_once(&folder, |room| build(workspace, room))?;
    Ok(folder)
}

/// The folder in the user's cache; it exists only with all programs.
pub(crate) fn cached() -> Result<PathBuf> {
    cache::folder(&format!("kubernetes-cluster-{VERSION}"))
}

fn build(workspace: &Workspace, room: &Path) -> Result<PathBuf> {
    progress::note(&format!("Kubernetes {VERSION} is built from Debian's source, once, in"));
    progress::note(&format!("{}; {VARIABLE} names a folder instead", room.display()));
    reuse(&room.join("programs"))?;
    Build::new(workspace, room, "cluster").cluster()
}

/// Links programs that other commands have compiled.
fn reuse(programs: &Path) -> Result<()> {
    fs::create_dir_all(programs)?;
    for (name, program) in [
        (format!("kubernetes-{VERSION}"), "kube-apiserver"),
        (format!("kubernetes-{VERSION}"), "kube-controller-manager"),
        (format!("kube-proxy-{VERSION}"), "kube-proxy"),
    ] {
        let (from, to) = (cache::folder(&name)?.join(program), programs.join(program));
        if from.is_file() && !to.exists() {
            fs::hard_link(from, to)?;
        }
    }
    Ok(())
}

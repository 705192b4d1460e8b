//! The programs and images of a cluster: where they are.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::process::printed;
use crate::requirements::named;

/// The variable for the folder with the programs of Kubernetes.
pub const KUBERNETES: &str = "TOPO_LB_KUBERNETES";
/// The variable for the folder with containerd, runc and the CNI plugins.
pub const CONTAINERD: &str = "TOPO_LB_CONTAINERD";
/// The variable for the folder with archives of images.
pub const IMAGES: &str = "TOPO_LB_IMAGES";

/// The variable for the archive with topo-lb's own image.
pub const IMAGE: &str = "TOPO_LB_IMAGE";

/// The variable for the archive with the image of topo-lb's last release, if there is one.
pub const LAST_RELEASE_IMAGE: &str = "TOPO_LB_LAST_RELEASE_IMAGE";

/// Where the parts are.
#[derive(Clone, Debug)]
pub struct Parts {
    kubernetes: PathBuf,
    containerd: PathBuf,
    images: Vec<PathBuf>,
    last_release: bool,
}

impl Parts {
    /// The parts that the environment names: [`KUBERNETES`], [`CONTAINERD`], [`IMAGES`], and, if set,
    /// [`IMAGE`] and [`LAST_RELEASE_IMAGE`].
    ///
    /// # Errors
    /// A variable is not set, or a part is missing.
    pub fn given() -> Result<Self> {
        let folder = |variable: &str| {
            let folder = env::var_os(variable).filter(|folder| !folder.is_empty());
            let folder = folder
                .with_context(|| format!("{variable} is not set: `cargo xtask cluster` sets it"))?;
            let folder = PathBuf::from(folder);
            ensure!(
                folder.is_dir(),
                "there is no folder {}, which {variable} names",
                folder.display()
            );
            Ok(folder)
        };
        let images = folder(IMAGES)?;
        let mut archives: Vec<_> =
            fs::read_dir(&images)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        archives.retain(|path| path.extension().is_some_and(|it| it == "tar"));
        ensure!(!archives.is_empty(), "there is no image in {}", images.display());
        archives.sort();
        let release = named(LAST_RELEASE_IMAGE)?;
        let last_release = release.is_some();
        archives.extend(named(IMAGE)?.into_iter().chain(release));
        let it = Self {
            kubernetes: folder(KUBERNETES)?,
            containerd: folder(CONTAINERD)?,
            images: archives,
            last_release,
        };
        for program in ["kube-scheduler", "kubelet", "kube-proxy"] {
            it.kubernetes(program)?;
        }
        for program in ["containerd", "containerd-shim-runc-v2", "ctr", "runc", "ptp", "host-local"]
        {
            it.containerd(program)?;
        }
        Ok(it)
    }

    /// A program of Kubernetes.
    pub fn kubernetes(&self, program: &str) -> Result<PathBuf> {
        of(&self.kubernetes, program)
    }

    /// A program of containerd, runc or the CNI plugins.
    pub fn containerd(&self, program: &str) -> Result<PathBuf> {
        of(&self.containerd, program)
    }

    /// The folder of the programs of Kubernetes.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.kubernetes
    }

    /// The archives of images.
    #[must_use]
    pub fn images(&self) -> &[PathBuf] {
        &self.images
    }

    /// Whether the images include topo-lb's last release, as [`LAST_RELEASE`](super::LAST_RELEASE).
    #[must_use]
    pub fn last_release(&self) -> bool {
        self.last_release
    }

    /// The version of Kubernetes: `1.20.2`.
    pub fn version(&self) -> Result<String> {
        let said = printed(Command::new(self.kubernetes("kubelet")?).arg("--version"))?;
        let version = said.trim().rsplit(" v").next().unwrap_or_default();
        ensure!(version.starts_with("1."), "kubelet has an unknown version: {said}");
        Ok(version.to_owned())
    }

    /// The minor version of Kubernetes: 20.
    pub fn minor(&self) -> Result<u32> {
        let version = self.version()?;
        let minor = version.split('.').nth(1).and_then(|minor| minor.parse().ok());
        minor.with_context(|| format!("kubelet has an unknown version: {version}"))
    }

    /// The environment of programs on a node: `first` leads the path.
    pub(crate) fn environment(&self, first: &Path) -> Result<Vec<(&'static str, OsString)>> {
        let path = env::var_os("PATH").unwrap_or_default();
        let ours = [first, &self.containerd].map(Path::to_path_buf);
        let folders = ours.into_iter().chain(env::split_paths(&path)).chain(sbin());
        let path = env::join_paths(folders).context("a folder's name has a colon")?;
        // runc's libraries are beside it.
        Ok(vec![("PATH", path), ("LD_LIBRARY_PATH", self.containerd.clone().into())])
    }
}

/// The program in a folder.
fn of(folder: &Path, program: &str) -> Result<PathBuf> {
    let path = folder.join(program);
    ensure!(
        path.is_file(),
        "there is no {program} in {}: name a folder that has it",
        folder.display()
    );
    Ok(path)
}

/// Where Debian has iptables: not on every user's path.
pub(crate) fn sbin() -> [PathBuf; 2] {
    ["/usr/sbin", "/sbin"].map(PathBuf::from)
}

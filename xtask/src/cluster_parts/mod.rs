//! The parts of a cluster on this machine: the programs of Kubernetes, containerd with its plugins,
//! kubectl, and the images of pods. Each comes from the folder that the environment names, or is
//! compiled or downloaded once into the user's cache.

mod containerd;
mod image_names;
mod images;

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::cluster_tools;
use crate::control_plane;
use crate::debian;
use crate::kube_proxy;
use crate::kubernetes;
use crate::workspace::{Workspace, find_program, path_from};

/// The folders of all parts.
#[derive(Debug)]
pub(crate) struct Parts {
    kubernetes: PathBuf,
    containerd: PathBuf,
    images: PathBuf,
    /// Variables and paths of kubectl and Helm.
    tools: Vec<(&'static str, PathBuf)>,
}

impl Parts {
    /// Gets what is not there.
    ///
    /// # Errors
    /// A folder that the environment names lacks a program, or a download or a build fails.
    pub(crate) fn get(workspace: &Workspace) -> Result<Self> {
        // First what takes no time, as it can fail.
        let containerd = containerd::programs(workspace)?;
        let tools = cluster_tools::programs(workspace)?;
        let kubernetes = kubernetes::programs(workspace)?;
        let images = images::archives(workspace)?;
        Ok(Self { kubernetes, containerd, images, tools })
    }

    /// Their kube-proxy.
    pub(crate) fn kube_proxy(&self) -> PathBuf {
        self.kubernetes.join("kube-proxy")
    }

    /// Tells a command where the parts are.
    pub(crate) fn name_in(&self, command: &mut Command) {
        command
            .env(kubernetes::VARIABLE, &self.kubernetes)
            .env(kube_proxy::VARIABLE, self.kube_proxy())
            .env(containerd::VARIABLE, &self.containerd)
            .env(images::VARIABLE, &self.images)
            .envs(self.tools.iter().map(|(variable, path)| (variable, path)));
    }
}

/// Whether all parts are there, or can be built and downloaded here.
pub(crate) fn are_obtainable() -> bool {
    let is_debian = control_plane::is_obtainable() && find_program("cc").is_some();
    let kubernetes = path_from(kubernetes::VARIABLE).is_some() || is_debian;
    let containerd = path_from(containerd::VARIABLE).is_some() || debian::is_obtainable();
    kubernetes && containerd
}

//! What is known of the machine's cluster outside the process that keeps it: one file.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde::{Deserialize, Serialize};

use super::Proxy;

/// One cluster at a time is on a machine.
const FILE: &str = "/run/topo-lb-cluster.json";

/// The cluster that is up, or coming up.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct State {
    /// The process that keeps it; its id is in all names of the cluster's lab.
    pub keeper: u32,
    /// What handles Services.
    pub proxy: Proxy,
    /// The version of Kubernetes.
    pub kubernetes: String,
    /// For users of the machine; `None` while the cluster is coming up.
    pub kubeconfig: Option<PathBuf>,
    /// Its nodes.
    pub nodes: Vec<Node>,
}

/// A node.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// Its network namespace, for `ip netns exec`.
    pub netns: String,
    /// Its programs, and their process ids.
    pub programs: Vec<(String, u32)>,
}

impl State {
    /// The cluster of this machine. `None`: there is none, or its keeper is gone.
    pub fn of_machine() -> Result<Option<Self>> {
        let Some(state) = Self::read()? else { return Ok(None) };
        Ok(state.is_kept().then_some(state))
    }

    /// The file, whoever keeps the cluster.
    pub fn read() -> Result<Option<Self>> {
        match fs::read(FILE) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            // A file that was cut short describes a cluster that never was up.
            text => Ok(serde_json::from_slice(&text?).ok()),
        }
    }

    /// Replaces the file in one step.
    pub fn write(&self) -> Result<()> {
        let text = serde_json::to_string(self).context("a state is always JSON")?;
        let partial = format!("{FILE}.{}", std::process::id());
        fs::write(&partial, text)?;
        Ok(fs::rename(partial, FILE)?)
    }

    /// Removes the file.
    pub fn remove() -> Result<()> {
        match fs::remove_file(FILE) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Whether its keeper runs: a process of this name, since ids are used again.
    fn is_kept(&self) -> bool {
        let name =
            fs::read_to_string(Path::new("/proc").join(self.keeper.to_string()).join("comm"));
        name.is_ok_and(|name| name.trim() == "cluster")
    }
}

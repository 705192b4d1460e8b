//! What is known of the machine's cluster outside the process that keeps it: one file.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde::{Deserialize, Serialize};

use crate::prefix::{Prefix, owner};
use crate::residue::STATES;

use super::Proxy;

/// The end of its folder's name, after the prefix of the lab.
const FOLDER: &str = "cluster";
const FILE: &str = "state.json";

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
    /// The address of its Prometheus, for users of the machine; `None`: it has none.
    pub prometheus: Option<String>,
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
    /// The folder for the state of the cluster in a lab.
    #[must_use]
    pub fn folder(prefix: &Prefix) -> PathBuf {
        Path::new(STATES).join(prefix.name(FOLDER))
    }

    /// The cluster of this machine. `None`: there is none, or its keeper is gone.
    pub fn of_machine() -> Result<Option<Self>> {
        for entry in fs::read_dir(STATES)?.flatten() {
            let name = entry.file_name();
            let keeper = name.to_str().filter(|name| name.ends_with(FOLDER)).and_then(owner);
            let text = keeper.and_then(|_| fs::read(entry.path().join(FILE)).ok());
            // A file that is not there yet, or cut short, says nothing.
            let state = text.and_then(|text| serde_json::from_slice::<Self>(&text).ok());
            if let Some(state) = state.filter(Self::is_kept) {
                return Ok(Some(state));
            }
        }
        Ok(None)
    }

    /// Replaces the state in its folder in one step.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let text = serde_json::to_string(self).context("a state is always JSON")?;
        let partial = folder.join("partial");
        fs::write(&partial, text)?;
        Ok(fs::rename(partial, folder.join(FILE))?)
    }

    /// Whether its keeper runs: a process of this name, since ids are used again.
    fn is_kept(&self) -> bool {
        let name =
            fs::read_to_string(Path::new("/proc").join(self.keeper.to_string()).join("comm"));
        name.is_ok_and(|name| name.trim() == "cluster")
    }
}

//! The plan of this machine: `/plan.json`, written by xtask's module `virtual_machine`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde::Deserialize;

const PATH: &str = "/plan.json";

#[derive(Debug, Deserialize)]
pub(crate) struct Plan {
    /// File systems to mount, each before those inside it: type, place, and options.
    pub(crate) mounts: Vec<[String; 3]>,
    /// The cgroup below the mounted ones that is the root of what runs; `None`: they themselves.
    pub(crate) nested: Option<PathBuf>,
    /// Files, and what to write there.
    pub(crate) writes: Vec<(PathBuf, String)>,
    /// Kernel modules, each after its dependencies.
    pub(crate) modules: Vec<PathBuf>,
    /// Variables for every suite.
    pub(crate) environment: BTreeMap<String, String>,
    /// In the order of execution.
    pub(crate) suites: Vec<Suite>,
}

/// A test binary, run once.
#[derive(Debug, Deserialize)]
pub(crate) struct Suite {
    pub(crate) name: String,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Part of the names of tests that need MPTCP.
    pub(crate) mptcp: Option<String>,
}

impl Plan {
    /// Reads the plan. Fails if the file is missing, or another version wrote it.
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(PATH)?;
        serde_json::from_str(&text).with_context(|| format!("{PATH} is no plan"))
    }
}

//! What xtask wants of the machine: `/plan.json`, written by its module `virtual_machine`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde::Deserialize;

const PATH: &str = "/plan.json";

/// All of it.
#[derive(Debug, Deserialize)]
pub(crate) struct Plan {
    /// Kernel modules, each after those that it depends on.
    pub(crate) modules: Vec<PathBuf>,
    /// Variables for every suite.
    pub(crate) environment: BTreeMap<String, String>,
    /// In this order.
    pub(crate) suites: Vec<Suite>,
}

/// A test binary, run once.
#[derive(Debug, Deserialize)]
pub(crate) struct Suite {
    /// What it is called.
    pub(crate) name: String,
    /// The binary.
    pub(crate) program: PathBuf,
    /// For it.
    pub(crate) arguments: Vec<String>,
    /// Part of the names of tests that need MPTCP.
    pub(crate) mptcp: Option<String>,
}

impl Plan {
    /// Reads it.
    ///
    /// # Errors
    /// It is not there, or another version's.
    pub(crate) fn read() -> Result<Self> {
        let text = fs::read_to_string(PATH).with_context(|| format!("cannot read {PATH}"))?;
        serde_json::from_str(&text).with_context(|| format!("{PATH} is no plan"))
    }
}

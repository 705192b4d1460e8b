//! The agent's binary, and its commands that end by themselves.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// An agent binary.
#[derive(Clone, Debug)]
pub struct Binary(PathBuf);

impl Binary {
    /// The binary at `path`.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self(path)
    }

    /// A command with `arguments`, without this process's `TOPO_LB_*` and similar variables.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.0);
        command.args(arguments).stdin(Stdio::null());
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("TOPO_LB_")) {
                command.env_remove(name);
            }
        }
        command.env_remove("NODE_NAME").env_remove("KUBECONFIG").env_remove("RUST_LOG");
        command
    }

    /// Runs it to its end.
    pub fn run(&self, arguments: &[&str]) -> Result<Output> {
        let output = self.command(arguments).output();
        output.with_context(|| format!("cannot run {}", self.0.display()))
    }

    /// The decisions for `node` by `topo-lb explain`, which needs no kernel.
    pub fn explain(&self, manifests: &Path, node: &str) -> Result<Value> {
        let mut command = self.command(&["explain", "--node", node, "-o", "json", "--manifests"]);
        command.arg(manifests);
        json_of(command)
    }
}

/// The row of a list in JSON whose field has this value.
pub fn row<'a>(rows: &'a Value, field: &str, value: &str) -> Result<&'a Value> {
    let found = rows.as_array().and_then(|rows| rows.iter().find(|row| row[field] == value));
    found.with_context(|| format!("no {field} {value} in {rows}"))
}

/// Runs a command of the binary to its end, and parses its standard output as JSON.
pub fn json_of(mut command: Command) -> Result<Value> {
    let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
    let what = format!("`topo-lb {}`", arguments.join(" "));
    let output = command.output().with_context(|| format!("cannot run {what}"))?;
    ensure!(
        output.status.success(),
        "{what} failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    serde_json::from_slice(&output.stdout).with_context(|| format!("{what} printed no JSON"))
}

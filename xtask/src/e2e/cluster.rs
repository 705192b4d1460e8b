//! The cluster that the tests run on: the one that is up, or else one of their own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;

use crate::cluster::ServiceProxy;
use crate::progress;

/// A cluster that is up. Dropping it takes it down, unless it was up before.
#[derive(Debug)]
pub(super) struct Cluster {
    pub(super) proxy: ServiceProxy,
    kubeconfig: PathBuf,
    is_ours: bool,
}

/// What `cargo xtask cluster status --json` says.
#[derive(Debug, Deserialize)]
struct Status {
    proxy: ServiceProxy,
    kubeconfig: PathBuf,
}

impl Cluster {
    /// The cluster that is up, or else a new one.
    ///
    /// # Errors
    /// The one that is up has another proxy, or a new one cannot be brought up.
    pub(super) fn ready(proxy: ServiceProxy) -> Result<Self> {
        if let Some(status) = status()? {
            ensure!(
                status.proxy == proxy,
                "a cluster with --proxy {} is up: take it down with `cargo xtask cluster down`, or \
                 test it with --proxy {0}",
                status.proxy.name()
            );
            return Ok(Self { proxy, kubeconfig: status.kubeconfig, is_ours: false });
        }
        let mut up = this_program();
        up.args(["cluster", "up", "--proxy", proxy.name()]);
        // Ctrl-C also reaches the child, which then leaves nothing.
        let child = up.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let output =
            child.and_then(|it| it.wait_with_output()).context("cannot start a cluster")?;
        ensure!(output.status.success(), "no cluster to test on");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let kubeconfig = said.lines().last().map(PathBuf::from);
        let kubeconfig = kubeconfig.context("`cluster up` has printed no path of a kubeconfig")?;
        Ok(Self { proxy, kubeconfig, is_ours: true })
    }

    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.is_ours
            && let Err(error) = down()
        {
            progress::warn(&format!("the cluster is still up: {error:#}"));
        }
    }
}

fn down() -> Result<()> {
    let mut down = this_program();
    // A stop signal has to end the tests, but not this.
    let status = down.args(["cluster", "down"]).stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.context("cannot take the cluster down")?;
    if !status.success() {
        bail!("`cargo xtask cluster down` failed ({status})");
    }
    Ok(())
}

/// The state of the cluster that is up.
fn status() -> Result<Option<Status>> {
    let mut status = this_program();
    let output = status.args(["cluster", "status", "--json"]).stdin(Stdio::null()).output();
    let output = output.context("cannot ask for a cluster")?;
    if !output.status.success() {
        return Ok(None);
    }
    let status = serde_json::from_slice(&output.stdout);
    Ok(Some(status.context("`cargo xtask cluster status --json` is not understood")?))
}

/// This program, also if its file was replaced meanwhile: Cargo does so whenever xtask has changed.
fn this_program() -> Command {
    Command::new("/proc/self/exe")
}

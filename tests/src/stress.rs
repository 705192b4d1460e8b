//! The report of the `stress` binary, and how to run it in a pod of the lab.

use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, NodePlan};
use crate::lab;
use crate::requirements::{self, BPFFS};

/// The most wrong outcomes to describe; all are counted.
const DESCRIBED: usize = 10;

/// The results of connections while Services changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Connections made and checked.
    pub connections: u64,
    /// Connections rightly refused or untouched.
    pub not_translated: u64,
    /// Services changed.
    pub changes: u64,
    /// Connections that reached a wrong endpoint.
    pub wrong_endpoint: u64,
    /// Connections that failed, or were wrongly refused or untouched.
    pub failed: u64,
    /// Descriptions of the first errors.
    pub described: Vec<String>,
}

impl Report {
    /// Whether every connection had a permitted result.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.wrong_endpoint == 0 && self.failed == 0
    }

    /// Adds another report.
    pub fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.not_translated += other.not_translated;
        self.changes += other.changes;
        self.wrong_endpoint += other.wrong_endpoint;
        self.failed += other.failed;
        self.described.extend(other.described);
        self.described.truncate(DESCRIBED);
    }

    /// Describes an error, unless enough are described.
    pub fn describe(&mut self, what: impl FnOnce() -> String) {
        if self.described.len() < DESCRIBED {
            self.described.push(what());
        }
    }
}

/// Makes a lab of one pod, and runs `stress` there.
///
/// # Errors
/// The lab cannot be made, the kernel refuses something, or something is left behind. Errors of
/// connections are in the report.
pub fn run(seconds: u64, seed: u64) -> Result<Report> {
    let plan = [NodePlan { name: "stressed", number: 1, pods: vec![("hammer", 2)] }];
    let mut report = None;
    lab::within(&plan, |cluster| {
        report = Some(within(cluster, seconds, seed)?);
        Ok(())
    })?;
    report.context("the lab has run")
}

fn within(cluster: &Cluster, seconds: u64, seed: u64) -> Result<Report> {
    let pod = cluster.pod("hammer")?;
    pod.netns.ip(&ROUTES.map(str::to_owned))?;
    let mut command = Command::new(requirements::binary("stress")?);
    command
        .arg("--pin-dir")
        .arg(Path::new(BPFFS).join(cluster.prefix().name("stress")))
        .arg("--cgroup-root")
        .arg(cluster.node("stressed")?.cgroup.path())
        .args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()]);
    let mut process = pod.spawn(command)?;
    let mut said = String::new();
    let output = process.child().stdout.as_mut().context("a pipe")?;
    output.read_to_string(&mut said).context("cannot hear the stress")?;
    let status = process.child().wait().context("cannot wait for the stress")?;
    ensure!(!said.is_empty(), "the stress ended with {status} and without a report");
    serde_json::from_str(&said).with_context(|| format!("the stress says {said:?}"))
}

/// Lines of `ip` that make every address in use an address of the pod.
const ROUTES: [&str; 4] = [
    "route add local 10.0.0.0/8 dev lo",
    "route add local 172.20.0.0/16 dev lo",
    "route add local fd00:a::/32 dev lo",
    "route add local fd00:b::/32 dev lo",
];

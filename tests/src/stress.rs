//! What the `stress` binary finds, and how it is run in a pod of the lab.

use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::cluster::{Cluster, NodePlan};
use crate::lab;
use crate::requirements::{self, BPFFS};

/// Wrong outcomes that are described; all are counted.
const DESCRIBED: usize = 10;

/// What became of connections while Services changed.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Connections made, each of them judged.
    pub connections: u64,
    /// Among them, rightly refused or untouched.
    pub not_translated: u64,
    /// Services changed.
    pub changes: u64,
    /// Connections that landed where they must not.
    pub wrong_endpoint: u64,
    /// Connections that failed, or were refused or untouched where they must not be.
    pub failed: u64,
    /// The first of those that went wrong, in words.
    pub described: Vec<String>,
}

impl Report {
    /// Whether every connection went where it may.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.wrong_endpoint == 0 && self.failed == 0
    }

    /// Adds another one.
    pub fn add(&mut self, other: Self) {
        self.connections += other.connections;
        self.not_translated += other.not_translated;
        self.changes += other.changes;
        self.wrong_endpoint += other.wrong_endpoint;
        self.failed += other.failed;
        self.described.extend(other.described);
        self.described.truncate(DESCRIBED);
    }

    /// Describes what went wrong with a connection, if few are described yet.
    pub fn describe(&mut self, what: impl FnOnce() -> String) {
        if self.described.len() < DESCRIBED {
            self.described.push(what());
        }
    }
}

/// Makes a lab of one pod, and has it stressed there.
///
/// # Errors
/// The lab cannot be made, the kernel refuses something, or something is left behind. What went
/// wrong with connections is no error: the report says it.
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

/// The lines of `ip` that make every address that it uses one of the pod's own.
const ROUTES: [&str; 4] = [
    "route add local 10.0.0.0/8 dev lo",
    "route add local 172.20.0.0/16 dev lo",
    "route add local fd00:a::/32 dev lo",
    "route add local fd00:b::/32 dev lo",
];

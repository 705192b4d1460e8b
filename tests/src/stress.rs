//! Runs the `stress` binary in a pod of the lab.

use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::lab;
use crate::node::NodePlan;
use crate::report::Report;
use crate::requirements::{self, BPFFS};

/// Makes a lab of one pod, and runs `stress` there. `outside`: clients outside connect, too.
///
/// # Errors
/// The lab cannot be made, the kernel refuses something, or something is left behind. Errors of
/// connections are in the report.
pub fn run(seconds: u64, seed: u64, outside: bool) -> Result<Report> {
    let plan = [NodePlan { name: "stressed", number: 1, pods: vec![("hammer", 2)] }];
    let mut report = None;
    lab::within(&plan, |cluster| {
        report = Some(within(cluster, seconds, seed, outside)?);
        Ok(())
    })?;
    report.context("the lab has run")
}

fn within(cluster: &Cluster, seconds: u64, seed: u64, outside: bool) -> Result<Report> {
    let pod = cluster.pod("hammer")?;
    pod.netns.ip(&ROUTES.map(str::to_owned))?;
    let mut command = Command::new(requirements::binary("stress")?);
    command
        .arg("--pin-dir")
        .arg(Path::new(BPFFS).join(cluster.prefix().name("stress")))
        .arg("--cgroup-root")
        .arg(cluster.node("stressed")?.cgroup.path())
        .args(["--seconds", &seconds.to_string(), "--seed", &seed.to_string()])
        .args(outside.then_some("--outside"));
    let mut process = pod.spawn(command)?;
    let mut said = String::new();
    let output = process.child().stdout.as_mut().context("a pipe")?;
    output.read_to_string(&mut said).context("cannot hear the stress")?;
    let status = process.child().wait().context("cannot wait for the stress")?;
    ensure!(!said.is_empty(), "the stress ended with {status} and without a report");
    serde_json::from_str(&said).with_context(|| format!("the stress says {said:?}"))
}

/// Lines of `ip` that make an uplink, and every address in use an address of the pod.
const ROUTES: [&str; 6] = [
    "link add uplink type veth peer name beyond",
    "link set uplink up",
    "route add local 10.0.0.0/8 dev lo",
    "route add local 172.20.0.0/16 dev lo",
    "route add local fd00:a::/32 dev lo",
    "route add local fd00:b::/32 dev lo",
];

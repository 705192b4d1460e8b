//! kube-proxy of a node, in mode iptables.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::process::Running;

use super::machine::Machine;
use super::parts::Parts;

/// Starts kube-proxy.
pub(crate) fn start(machine: &Machine<'_>, parts: &Parts, kubeconfig: &Path) -> Result<Running> {
    let mut command = Command::new(parts.kubernetes("kube-proxy")?);
    command
        .envs(parts.environment(&machine.folder().join("bin"))?)
        // The lock of iptables is the machine's otherwise.
        .env("XTABLES_LOCKFILE", "/run/xtables.lock")
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--hostname-override={}", machine.node.name))
        .args(["--proxy-mode=iptables", "--cluster-cidr=10.244.0.0/16"])
        // The limit applies to the whole machine, not only to this node.
        .args(["--conntrack-max-per-core=0", "--conntrack-min=0"]);
    machine.start("kube-proxy", command)
}

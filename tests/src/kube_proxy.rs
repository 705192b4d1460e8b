//! kube-proxy 1.20 in mode iptables with Service Topology, as on a plain cluster, beside which the bench
//! and the table of external traffic compare topo-lb. 1.20 is the last version but one with
//! `spec.topologyKeys` (removed in Kubernetes 1.22).

use std::env;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;
use crate::iptables::Iptables;
use crate::process::printed;
use crate::wait::until;
use topo_lb_fake_api::FakeApi;

/// The variable that names the program.
pub const VARIABLE: &str = "TOPO_LB_KUBE_PROXY";

/// The program, and the iptables for it.
#[derive(Debug)]
pub struct Program {
    program: PathBuf,
    /// The iptables that it calls.
    pub iptables: Iptables,
}

impl Program {
    /// The program that the environment names, if any, for nodes like `node`.
    ///
    /// # Errors
    /// It has another version, or a program that it calls is not installed.
    pub fn given(cluster: &Cluster, node: &str) -> Result<Option<Self>> {
        let Some(program) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let said = printed(Command::new(&program).arg("--version"))
            .with_context(|| format!("{VARIABLE} does not name a kube-proxy"))?;
        ensure!(
            said.contains(" v1.20."),
            "{VARIABLE} names {}, and what is compared is 1.20: `cargo xtask bench` builds one",
            said.trim()
        );
        Ok(Some(Self { program: program.into(), iptables: Iptables::find(cluster, node)? }))
    }

    /// Waits until it has rules for a node port of TCP on a node, in both families. It writes the rules of
    /// all Services at once.
    pub fn wait_for_node_port(
        &self,
        cluster: &Cluster,
        node: &str,
        port: u16,
        patience: Duration,
    ) -> Result<()> {
        until("kube-proxy's rules", patience, || {
            for iptables in ["iptables", "ip6tables"] {
                // The path of the environment applies only to children of what it is given to.
                let mut list = Command::new("env");
                list.args([iptables, "-w", "-t", "nat", "-S"]).envs(self.iptables.environment());
                cluster.beside(cluster.node(node)?, &mut list)?;
                let is_it = |rule: &str| {
                    rule.starts_with("-A KUBE-NODEPORTS ")
                        && rule.contains("-p tcp")
                        && rule.contains(&format!("--dport {port} "))
                };
                if !printed(&mut list)?.lines().any(is_it) {
                    return Ok(Err(format!("{iptables} has no rule for node port {port}")));
                }
            }
            Ok(Ok(()))
        })?;
        Ok(())
    }

    /// Removes its rules from a node.
    ///
    /// # Errors
    /// Some are left.
    pub fn clean_up(&self, cluster: &Cluster, node: &str) -> Result<()> {
        let mut command = Command::new(&self.program);
        command.arg("--cleanup").envs(self.iptables.environment());
        cluster.beside(cluster.node(node)?, &mut command)?;
        // It also reports what was never there, such as IPVS, as a failure.
        let output = command.output()?;
        for save in ["iptables-save", "ip6tables-save"] {
            let mut list = Command::new("env");
            list.args([save, "-t", "nat"]).envs(self.iptables.environment());
            cluster.beside(cluster.node(node)?, &mut list)?;
            let rules = printed(&mut list)?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(!rules.contains("KUBE-NODEPORTS"), "{save}: {rules}\n{said}");
        }
        Ok(())
    }

    /// The command that runs it on a node with this address. `features` are feature gates besides those
    /// of Service Topology; `pods` are the ranges of pod addresses.
    pub fn command(
        &self,
        cluster: &Cluster,
        (node, address): (&str, Ipv4Addr),
        server: &FakeApi,
        features: &str,
        pods: &str,
    ) -> Result<Command> {
        let mut command = Command::new(&self.program);
        command
            .envs(self.iptables.environment())
            .arg(format!("--master={}", server.url()))
            .arg("--kube-api-content-type=application/json")
            .arg(format!("--hostname-override={node}"))
            .arg(format!("--bind-address={address}"))
            .arg("--proxy-mode=iptables")
            .arg(format!(
                "--feature-gates=ServiceTopology=true,EndpointSliceProxying=true{features}"
            ))
            .arg(format!("--cluster-cidr={pods}"))
            // The limit applies to the whole machine, not only to this node.
            .arg("--conntrack-max-per-core=0");
        cluster.beside(cluster.node(node)?, &mut command)?;
        Ok(command)
    }
}

//! keepalived, from Debian's package: one of several nodes has an address (VRRP, RFC 5798), and the next one takes it.

use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use fs_err as fs;

use crate::cluster::Cluster;
use crate::process::{Running, enter, spawn_logged};
use crate::requirements;

/// A keepalived that runs; it ends with this, and gives the address back.
#[derive(Debug)]
pub struct Keeper(Running);

impl Keeper {
    fn start(cluster: &Cluster, node: &str, address: &str, priority: u8) -> Result<Self> {
        requirements::command("keepalived", "keepalived")?;
        let path = |kind: &str| cluster.folder().join(format!("keepalived-{node}.{kind}"));
        // Advertisements every 0.1 s: a silent node is left after 0.4 s.
        let configuration = format!(
            "global_defs {{\n router_id {node}\n vrrp_version 3\n}}\n\
             vrrp_instance balancer {{\n state BACKUP\n interface eth0\n virtual_router_id 51\n \
             priority {priority}\n advert_int 0.1\n \
             virtual_ipaddress {{\n {address}/32 dev eth0\n }}\n}}\n"
        );
        fs::write(path("conf"), configuration)?;
        let mut command = Command::new("/usr/sbin/keepalived");
        command.args(["--dont-fork", "--vrrp", "--log-console", "--log-detail"]);
        command.arg("--use-file").arg(path("conf")).arg("--pid").arg(path("pid"));
        command.arg("--vrrp_pid").arg(path("vrrp"));
        enter(&mut command, cluster.node_netns(node)?, None)?;
        Ok(Self(spawn_logged(&mut command, &path("log"))?))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Its child process ends only so at once. What does not end is killed.
        let _ = self.0.stop(Duration::from_secs(2));
    }
}

/// Has one of these nodes have an IPv4 address at its uplink: the one with the highest priority that the others hear.
///
/// # Errors
/// A process does not start.
pub fn keep(cluster: &Cluster, address: &str, nodes: &[(&str, u8)]) -> Result<Vec<Keeper>> {
    let start = |&(node, priority): &(&str, u8)| Keeper::start(cluster, node, address, priority);
    nodes.iter().map(start).collect()
}

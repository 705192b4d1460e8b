//! Routers of BIRD, from Debian's `bird2`: nodes announce addresses by BGP, and the fabric spreads flows over those that do.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use fs_err as fs;

use crate::cluster::Cluster;
use crate::netns::NetNs;
use crate::process::{Running, enter, printed, spawn_logged};
use crate::requirements;

/// The autonomous systems of the fabric and of the nodes (RFC 6996: private use).
const FABRIC: u32 = 64_512;
const NODES: u32 = 64_513;
/// What nodes find out about each other's links (RFC 5880), so a silent one is left after 0.3 s.
const BFD: &str = "protocol bfd { interface \"*\" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }; }";

/// A router that runs; it ends with this.
#[derive(Debug)]
pub struct Router {
    _process: Running,
    control: std::path::PathBuf,
}

impl Router {
    /// Starts BIRD in a network namespace with this configuration besides what all need.
    fn start(netns: &NetNs, folder: &Path, name: &str, id: &str, protocols: &str) -> Result<Self> {
        requirements::command("bird", "bird2")?;
        let path = |kind: &str| folder.join(format!("bird-{name}.{kind}"));
        let configuration =
            format!("router id {id};\nprotocol device {{ scan time 1; }}\n{BFD}\n{protocols}\n");
        fs::write(path("conf"), configuration)?;
        let control = path("ctl");
        // A router has its processor for itself. On a busy one BIRD would miss the others' BFD packets, and withdraw all.
        let mut command = Command::new("nice");
        command.args(["-n", "-15", "/usr/sbin/bird", "-f"]);
        command.arg("-c").arg(path("conf")).arg("-s").arg(&control);
        command.arg("-P").arg(path("pid"));
        enter(&mut command, netns, None)?;
        let _process = spawn_logged(&mut command, &path("log"))?;
        Ok(Self { _process, control })
    }

    /// What `birdc` prints.
    ///
    /// # Errors
    /// The router does not answer.
    pub fn says(&self, question: &str) -> Result<String> {
        let mut command = Command::new("/usr/sbin/birdc");
        printed(command.arg("-r").arg("-s").arg(&self.control).args(question.split(' ')))
    }
}

/// Has nodes announce an IPv4 address to the fabric by BGP with BFD. `nodes`: names and addresses. The fabric takes all
/// routes with equal costs; what it forwards by which one is up to its hash.
///
/// # Errors
/// A router does not start.
pub fn announce(cluster: &Cluster, address: &str, nodes: &[(&str, &str)]) -> Result<Vec<Router>> {
    const OF_FABRIC: &str = "172.30.0.254";
    let folder = cluster.folder();
    let mut routers = Vec::new();
    let mut sessions = String::from(
        "protocol kernel { merge paths yes; ipv4 { export where source = RTS_BGP; }; }\n",
    );
    for (name, own) in nodes {
        let node = format!(
            "protocol static {{ ipv4; route {address}/32 unreachable; }}\n\
             protocol bgp {{ local {own} as {NODES}; neighbor {OF_FABRIC} as {FABRIC}; bfd on; connect retry time 1; \
             connect delay time 1; error wait time 1, 2; ipv4 {{ import none; export where source = RTS_STATIC; }}; }}"
        );
        routers.push(Router::start(cluster.node_netns(name)?, folder, name, own, &node)?);
        sessions += &format!(
            "protocol bgp {name} {{ local {OF_FABRIC} as {FABRIC}; neighbor {own} as {NODES}; bfd on; \
             connect retry time 1; connect delay time 1; error wait time 1, 2; ipv4 {{ import all; export none; }}; }}\n"
        );
    }
    let fabric = Router::start(cluster.fabric(), folder, "fabric", OF_FABRIC, &sessions);
    routers.push(fabric.context("the fabric's router")?);
    Ok(routers)
}

//! Routers from Debian's packages, BIRD (`bird2`) and FRR (`frr`): nodes announce addresses by BGP, and the fabric spreads
//! flows over those that do.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;

use crate::cluster::Cluster;
use crate::netns::NetNs;
use crate::process::{Running, enter, spawn_logged};
use crate::requirements;

/// The autonomous systems of the fabric and of the nodes (RFC 6996: private use).
const FABRIC: u32 = 64_512;
const NODES: u32 = 64_513;
/// The fabric's address.
const OF_FABRIC: &str = "172.30.0.254";
/// What nodes find out about each other's links (RFC 5880), so a silent one is left after 0.3 s.
const BFD: &str = "protocol bfd { interface \"*\" { min rx interval 100 ms; min tx interval 100 ms; multiplier 3; }; }";
/// Debian keeps FRR's daemons here.
const FRR: &str = "/usr/lib/frr/bgpd";

/// A router that runs; it ends with this.
#[derive(Debug)]
pub struct Router(#[expect(dead_code, reason = "ends when it is dropped")] Running);

/// What announces addresses on nodes.
#[derive(Clone, Copy, Debug)]
pub enum Speaker {
    /// BIRD, with BFD.
    Bird,
    /// FRR's `bgpd`, alone: a silent node is left after 3 s.
    Frr,
}

/// Starts BIRD in a network namespace with this configuration besides what all need.
fn bird(netns: &NetNs, folder: &Path, name: &str, id: &str, protocols: &str) -> Result<Router> {
    requirements::command("bird", "bird2")?;
    let path = |kind: &str| folder.join(format!("bird-{name}.{kind}"));
    let configuration =
        format!("router id {id};\nprotocol device {{ scan time 1; }}\n{BFD}\n{protocols}\n");
    fs::write(path("conf"), configuration)?;
    // A router has its processor for itself. On a busy one BIRD would miss the others' BFD packets, and withdraw all.
    let mut command = Command::new("nice");
    command.args(["-n", "-15", "/usr/sbin/bird", "-f"]);
    command.arg("-c").arg(path("conf")).arg("-s").arg(path("ctl"));
    command.arg("-P").arg(path("pid"));
    enter(&mut command, netns, None)?;
    Ok(Router(spawn_logged(&mut command, &path("log"))?))
}

/// Starts FRR's `bgpd` on a node, without `zebra`: it announces and learns nothing.
fn frr(netns: &NetNs, folder: &Path, name: &str, own: &str, address: &str) -> Result<Router> {
    ensure!(Path::new(FRR).is_file(), "{FRR} is missing: install the package frr");
    let home = folder.join(format!("frr-{name}"));
    fs::create_dir(&home)?;
    let path = |kind: &str| home.join(kind);
    let configuration = format!(
        "frr defaults traditional\nlog stdout informational\nrouter bgp {NODES}\n bgp router-id {own}\n \
         no bgp ebgp-requires-policy\n no bgp network import-check\n neighbor {OF_FABRIC} remote-as {FABRIC}\n \
         neighbor {OF_FABRIC} timers 1 3\n neighbor {OF_FABRIC} timers connect 1\n \
         address-family ipv4 unicast\n  network {address}/32\n exit-address-family\n"
    );
    fs::write(path("conf"), configuration)?;
    let mut command = Command::new(FRR);
    command.args(["--no_zebra", "--skip_runas", "--vty_port", "0", "--listenon", own]);
    command.arg("--config_file").arg(path("conf")).arg("--pid_file").arg(path("pid"));
    command.arg("--vty_socket").arg(&home);
    enter(&mut command, netns, None)?;
    Ok(Router(spawn_logged(&mut command, &folder.join(format!("frr-{name}.log")))?))
}

/// Has nodes announce an IPv4 address to the fabric by BGP. `nodes`: names and addresses. The fabric, by BIRD, takes all
/// routes with equal costs; what it forwards by which one is up to its hash.
///
/// # Errors
/// A router does not start.
pub fn announce(
    cluster: &Cluster,
    address: &str,
    nodes: &[(&str, &str)],
    speaker: Speaker,
) -> Result<Vec<Router>> {
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
        let netns = cluster.node_netns(name)?;
        routers.push(match speaker {
            Speaker::Bird => bird(netns, folder, name, own, &node)?,
            Speaker::Frr => frr(netns, folder, name, own, address)?,
        });
        sessions += &format!(
            "protocol bgp {name} {{ local {OF_FABRIC} as {FABRIC}; neighbor {own} as {NODES}; bfd on; \
             graceful restart off; connect retry time 1; connect delay time 1; error wait time 1, 2; ipv4 {{ import all; export none; }}; }}\n"
        );
    }
    let fabric = bird(cluster.fabric(), folder, "fabric", OF_FABRIC, &sessions);
    routers.push(fabric.context("the fabric's router")?);
    Ok(routers)
}

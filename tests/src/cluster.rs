//! Nodes and pods, wired as the crate's page shows.

use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cgroup::{self, Cgroup};
use crate::client::Client;
use crate::netns::NetNs;
use crate::objects::Objects;
use crate::pod::{Pod, serve};
use crate::prefix::{self, Prefix};
use crate::process::{Running, enter};
use crate::wait::{PATIENCE, until};
use crate::{interrupt, requirements, residue};

/// A node that is to be.
#[derive(Clone, Debug)]
pub struct NodePlan<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its number, 0–99: its pods are in `10.244.<number>.0/24` and `fd00:244:<number>::/64`.
    pub number: u8,
    /// Names of its pods, and the last byte of their addresses.
    pub pods: Vec<(&'a str, u8)>,
}

/// A node: a network namespace and a cgroup.
#[derive(Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    pods: Vec<Pod>,
    pub(crate) cgroup: Cgroup,
    pub(crate) netns: NetNs,
}

/// A whole cluster. Dropping it removes it.
#[derive(Debug)]
pub struct Cluster {
    prefix: Prefix,
    folder: Folder,
    nodes: Vec<Node>,
    /// Where agents run: on no node, so that their own connections are nobody's traffic.
    agents: Cgroup,
    fabric: NetNs,
    made: Mutex<Objects>,
}

impl Cluster {
    /// Makes the cluster, after sweeping what labs of dead processes have left.
    ///
    /// # Errors
    /// The machine lacks something, or the kernel refuses.
    pub fn make(plan: &[NodePlan<'_>]) -> Result<Self> {
        requirements::check()?;
        interrupt::arm()?;
        residue::sweep(|name| prefix::owner(name).is_some_and(prefix::is_dead))?;
        let prefix = Prefix::new();
        let folder = Folder::make(prefix.folder())?;

        let mut names = vec![prefix.name("fabric")];
        for node in plan {
            ensure!(node.number < 100, "a node's number is below 100");
            names.push(prefix.name(node.name));
            names.extend(node.pods.iter().map(|(pod, _)| prefix.name(pod)));
        }
        let mut spaces = NetNs::make(&names)?.into_iter();
        let mut space = || spaces.next().context("as many namespaces as names");
        let root = cgroup::root()?;
        let fabric = space()?;
        let agents = Cgroup::make(&root, &prefix.name("agents"))?;
        let mut nodes = Vec::new();
        for node in plan {
            let netns = space()?;
            let cgroup = Cgroup::make(&root, &prefix.name(node.name))?;
            let mut pods = Vec::new();
            for &(name, host) in &node.pods {
                pods.push(Pod {
                    name: name.into(),
                    node: node.name.into(),
                    ipv4: pod4(node.number, host),
                    ipv6: pod6(node.number, host),
                    cgroup: Cgroup::make(cgroup.path(), name)?,
                    netns: space()?,
                });
            }
            nodes.push(Node { name: node.name.into(), pods, cgroup, netns });
        }
        let cluster =
            Self { prefix, folder, nodes, agents, fabric, made: Mutex::new(Objects::default()) };
        cluster.wire(plan)?;
        Ok(cluster)
    }

    /// The name that all its things begin with.
    #[must_use]
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// A folder for files, which goes with the cluster.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder.0
    }

    /// The cgroup of the agents.
    #[must_use]
    pub fn agents(&self) -> &Cgroup {
        &self.agents
    }

    /// The node with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn node(&self, name: &str) -> Result<&Node> {
        let found = self.nodes.iter().find(|node| node.name == name);
        found.with_context(|| format!("the lab has no node {name}"))
    }

    /// Every node.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The pod with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn pod(&self, name: &str) -> Result<&Pod> {
        let found = self.pods().find(|pod| pod.name == name);
        found.with_context(|| format!("the lab has no pod {name}"))
    }

    /// Every pod.
    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.nodes.iter().flat_map(|node| &node.pods)
    }

    /// A server beyond the nodes that answers "untouched" at addresses of the Service ranges, to
    /// whom nobody has translated.
    ///
    /// # Errors
    /// It does not start.
    pub fn serve_untouched(&self, listen: &[SocketAddr]) -> Result<Running> {
        serve("untouched", listen, |mut command| {
            let _permit = interrupt::permit();
            enter(&mut command, &self.fabric, Some(&self.agents))?;
            let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            Ok(Running::new(child.context("cannot start a server on the fabric")?))
        })
    }

    /// A client that stands for a virtual machine behind the device of the pod `pod`: in the pod's
    /// network namespace, and in no cgroup that an agent serves.
    ///
    /// # Errors
    /// It does not start.
    pub fn machine(&self, pod: &str) -> Result<Client> {
        let pod = self.pod(pod)?;
        let mut command = Command::new(requirements::pod()?);
        command.arg("client");
        let _permit = interrupt::permit();
        enter(&mut command, &pod.netns, Some(&self.agents))?;
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let child = child.with_context(|| format!("cannot start a client in {}", pod.name))?;
        Client::new(&pod.name, Running::new(child))
    }

    /// Runs lines of `ip` in the network namespace of a node.
    ///
    /// # Errors
    /// A line is refused.
    pub fn ip_on(&self, node: &str, lines: &[String]) -> Result<()> {
        self.node(node)?.netns.ip(lines)
    }

    /// Runs `command` as an agent of `node` would: in its network namespace, outside its cgroup.
    ///
    /// # Errors
    /// The namespace or cgroup cannot be opened.
    pub fn beside(&self, node: &Node, command: &mut Command) -> Result<()> {
        enter(command, &node.netns, Some(&self.agents))
    }

    /// Remembers BPF objects that are to be gone when the cluster is.
    pub fn remember(&self, objects: &Objects) {
        self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner).extend(objects);
    }

    /// Removes the cluster, and proves that nothing is left: no namespace, cgroup, pin, folder,
    /// process, and none of the BPF objects that its agents made.
    ///
    /// # Errors
    /// Something is left; it is named.
    pub fn remove(self) -> Result<()> {
        let prefix = self.prefix.clone();
        let made = self.made.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone();
        drop(self);
        let left = residue::find(|name| prefix.owns(name))?;
        if !left.is_empty() {
            residue::sweep(|name| prefix.owns(name))?;
            bail!("left behind, and now removed: {left:?}");
        }
        made.wait_until_gone()
    }

    fn wire(&self, plan: &[NodePlan<'_>]) -> Result<()> {
        self.lay_cables(plan)?;
        self.set_up_fabric(plan)?;
        for (node, planned) in self.nodes.iter().zip(plan) {
            set_up_node(node, planned, plan)?;
            for (pod, &(_, host)) in node.pods.iter().zip(&planned.pods) {
                set_up_pod(pod, planned.number, host)?;
            }
        }
        self.pods().try_for_each(wait_for_links)
    }

    /// Every veth pair, each end made where it belongs, by one process.
    fn lay_cables(&self, plan: &[NodePlan<'_>]) -> Result<()> {
        let mut lines = vec!["link add br0 type bridge mcast_snooping 0".to_owned()];
        for (node, planned) in self.nodes.iter().zip(plan) {
            let number = planned.number;
            let here = node.netns.path().display();
            lines.push(format!(
                "link add node{number} type veth peer name eth0 address {} netns {here}",
                mac(Port::Uplink, number, 0)
            ));
            lines.push(format!("link set node{number} master br0 up"));
            for (pod, &(_, host)) in node.pods.iter().zip(&planned.pods) {
                lines.push(format!(
                    "link add pod{host} address {} netns {here} type veth \
                     peer name eth0 address {} netns {}",
                    mac(Port::PodOnNode, number, host),
                    mac(Port::Pod, number, host),
                    pod.netns.path().display(),
                ));
            }
        }
        self.fabric.ip(&lines)
    }

    fn set_up_fabric(&self, plan: &[NodePlan<'_>]) -> Result<()> {
        quiet(&self.fabric)?;
        // Addresses by route, not by device, are free to bind to for IPv4 only.
        self.fabric.set(&[("ipv6/ip_nonlocal_bind", "1")])?;
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("link set br0 address {} up", mac(Port::Uplink, FABRIC, 0)),
            format!("address add {}/24 dev br0", node4(FABRIC)),
            format!("address add {}/64 dev br0 nodad", node6(FABRIC)),
            // Whatever the ranges of the ClusterIPs hold is an address of the fabric's own.
            "route add local 10.96.0.0/12 dev lo".to_owned(),
            "route add local fd00:96::/112 dev lo".to_owned(),
        ];
        for node in plan {
            lines.extend(route_to(node.number, "br0"));
        }
        self.fabric.ip(&lines)
    }
}

/// A folder that goes with the cluster.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn make(path: PathBuf) -> Result<Self> {
        let _permit = interrupt::permit();
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = residue::remove_tree(&self.0) {
            eprintln!("{error:#}");
        }
    }
}

fn set_up_node(node: &Node, planned: &NodePlan<'_>, plan: &[NodePlan<'_>]) -> Result<()> {
    let number = planned.number;
    quiet(&node.netns)?;
    let mut lines = vec![
        "link set lo up".to_owned(),
        "link set eth0 up".to_owned(),
        format!("address add {}/24 dev eth0", node4(number)),
        format!("address add {}/64 dev eth0 nodad", node6(number)),
        format!("route add default via {}", node4(FABRIC)),
        format!("route add default via {}", node6(FABRIC)),
    ];
    lines.extend(neighbour(FABRIC, "eth0"));
    for other in plan.iter().filter(|other| other.number != number) {
        lines.extend(route_to(other.number, "eth0"));
    }
    for &(_, host) in &planned.pods {
        let (ipv4, ipv6) = (pod4(number, host), pod6(number, host));
        let there = mac(Port::Pod, number, host);
        lines.extend([
            format!("link set pod{host} up"),
            format!("address add {GATEWAY4}/32 dev pod{host}"),
            format!("address add {GATEWAY6}/64 dev pod{host} nodad"),
            format!("route add {ipv4} dev pod{host}"),
            format!("route add {ipv6} dev pod{host}"),
            format!("neigh add {ipv4} lladdr {there} dev pod{host} nud permanent"),
            format!("neigh add {ipv6} lladdr {there} dev pod{host} nud permanent"),
        ]);
    }
    node.netns.ip(&lines)
}

fn set_up_pod(pod: &Pod, number: u8, host: u8) -> Result<()> {
    quiet(&pod.netns)?;
    let there = mac(Port::PodOnNode, number, host);
    pod.netns.ip(&[
        "link set lo up".to_owned(),
        "link set eth0 up".to_owned(),
        format!("address add {}/32 dev eth0", pod.ipv4),
        format!("address add {}/128 dev eth0 nodad", pod.ipv6),
        format!("neigh add {GATEWAY4} lladdr {there} dev eth0 nud permanent"),
        format!("neigh add {GATEWAY6} lladdr {there} dev eth0 nud permanent"),
        format!("route add {GATEWAY4} dev eth0 scope link"),
        format!("route add default via {GATEWAY4} dev eth0"),
        format!("route add default via {GATEWAY6} dev eth0"),
    ])
}

/// Waits until packets pass from the pod to the fabric and back: the kernel brings the ends of a
/// link up in its own time, and what is sent before is lost.
fn wait_for_links(pod: &Pod) -> Result<()> {
    pod.netns.run(|| {
        for address in [IpAddr::from(node4(FABRIC)), IpAddr::from(node6(FABRIC))] {
            until(&format!("a way from pod {} to {address}", pod.name), PATIENCE, || {
                // Nobody listens there, and a refusal takes the whole way back.
                let to = SocketAddr::from((address, 1));
                Ok(match TcpStream::connect_timeout(&to, Duration::from_millis(20)) {
                    Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => Err(error),
                    _ => Ok(()),
                })
            })?;
        }
        Ok(())
    })
}

/// Forwards, and neither waits for duplicate addresses nor listens to routers.
fn quiet(netns: &NetNs) -> Result<()> {
    netns.set(&[
        ("ipv4/ip_forward", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv6/conf/all/disable_ipv6", "0"),
        ("ipv6/conf/default/accept_dad", "0"),
        ("ipv6/conf/default/accept_ra", "0"),
    ])
}

fn route_to(number: u8, device: &str) -> Vec<String> {
    let mut lines = neighbour(number, device).to_vec();
    lines.push(format!("route add 10.244.{number}.0/24 via {}", node4(number)));
    lines.push(format!("route add fd00:244:{number}::/64 via {}", node6(number)));
    lines
}

/// Known beforehand, so that no first packet waits for an answer.
fn neighbour(number: u8, device: &str) -> [String; 2] {
    let there = mac(Port::Uplink, number, 0);
    [
        format!("neigh add {} lladdr {there} dev {device} nud permanent", node4(number)),
        format!("neigh add {} lladdr {there} dev {device} nud permanent", node6(number)),
    ]
}

/// What every pod takes for its router: the node's end of its veth pair.
const GATEWAY4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The fabric's number among the nodes' uplinks.
const FABRIC: u8 = 254;

/// The address of the pod `host` on node `number`.
#[must_use]
pub fn pod4(number: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, number, host)
}

/// The IPv6 address of the pod `host` on node `number`, written with the same digits as
/// [`pod4`]'s.
#[must_use]
pub fn pod6(number: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x244, digits(number), 0, 0, 0, 0, digits(host))
}

fn node4(number: u8) -> Ipv4Addr {
    // Nodes are numbered from zero, addresses of hosts from one.
    Ipv4Addr::new(172, 30, 0, if number == FABRIC { FABRIC } else { number + 1 })
}

fn node6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x172, 0, 0, 0, 0, 0, u16::from(number) + 1)
}

/// 12 as 0x12.
fn digits(number: u8) -> u16 {
    let number = u16::from(number);
    number / 100 * 0x100 + number / 10 % 10 * 0x10 + number % 10
}

#[derive(Clone, Copy)]
enum Port {
    Uplink = 1,
    PodOnNode = 2,
    Pod = 3,
}

/// A locally administered address; "TL" in the middle.
fn mac(port: Port, number: u8, host: u8) -> String {
    format!("02:54:4c:{:02x}:{number:02x}:{host:02x}", port as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_show_the_same_digits() {
        assert_eq!(pod4(1, 2).to_string(), "10.244.1.2");
        assert_eq!(pod6(1, 2).to_string(), "fd00:244:1::2");
        assert_eq!(pod6(2, 120).to_string(), "fd00:244:2::120");
    }
}

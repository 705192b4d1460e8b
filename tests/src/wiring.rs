//! The links, addresses and routes of a cluster; each end of a link is made in its own namespace.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::Result;

use crate::netns::NetNs;
use crate::node::{Node, NodePlan};
use crate::pod::Pod;
use crate::requirements::has_ipv6;
use crate::wait::{PATIENCE, patient, until};

/// The pods' router: the node's end of their veth pairs.
pub(crate) const GATEWAY4: Ipv4Addr = Ipv4Addr::new(169, 254, 1, 1);
const GATEWAY6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
/// The fabric's number among the nodes' uplinks.
const FABRIC: u8 = 254;

/// The address of the pod `host` on node `number`.
#[must_use]
pub fn pod4(number: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, number, host)
}

/// The IPv6 address of the pod `host` on node `number`, with the same digits as [`pod4`]'s.
#[must_use]
pub fn pod6(number: u8, host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x244, digits(number), 0, 0, 0, 0, digits(host))
}

/// The address of node `number` on the fabric.
#[must_use]
pub fn node4(number: u8) -> Ipv4Addr {
    // Nodes are numbered from 0, host addresses from 1.
    Ipv4Addr::new(172, 30, 0, if number == FABRIC { FABRIC } else { number + 1 })
}

/// The fabric's own address; every node can reach it.
pub(crate) fn fabric4() -> Ipv4Addr {
    node4(FABRIC)
}

/// The IPv6 address of node `number` on the fabric.
#[must_use]
pub fn node6(number: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x172, 0, 0, 0, 0, 0, u16::from(number) + 1)
}

/// 12 becomes 0x12.
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

/// A locally administered address with "TL" in the middle.
fn mac(port: Port, number: u8, host: u8) -> String {
    format!("02:54:4c:{:02x}:{number:02x}:{host:02x}", port as u8)
}

/// The Ethernet address of a node's uplink.
pub(crate) fn mac_of_uplink(number: u8) -> String {
    mac(Port::Uplink, number, 0)
}

/// Connects everything, and waits until packets pass.
pub(crate) fn wire(fabric: &NetNs, nodes: &[Node], plan: &[NodePlan<'_>]) -> Result<()> {
    lay_cables(fabric, nodes, plan)?;
    set_up_fabric(fabric, plan)?;
    for (node, planned) in nodes.iter().zip(plan) {
        set_up_node(node, planned, plan)?;
        for (pod, &(_, host)) in node.pods.iter().zip(&planned.pods) {
            set_up_pod(pod, planned.number, host)?;
        }
    }
    nodes.iter().flat_map(|node| &node.pods).try_for_each(wait_for_links)
}

/// Makes every veth pair with one process, each end in its own namespace.
fn lay_cables(fabric: &NetNs, nodes: &[Node], plan: &[NodePlan<'_>]) -> Result<()> {
    let mut lines = vec!["link add br0 type bridge mcast_snooping 0".to_owned()];
    // A card gives all packets of a flow to one queue, and so to one CPU at a time. A veth device has a queue for each.
    let queues = "numrxqueues 1 numtxqueues 1";
    for (node, planned) in nodes.iter().zip(plan) {
        let number = planned.number;
        let here = node.netns.path().display();
        lines.push(format!(
            "link add node{number} {queues} type veth peer name eth0 {queues} address {} netns {here}",
            mac(Port::Uplink, number, 0)
        ));
        lines.push(format!("link set node{number} master br0 up"));
        for (pod, &(_, host)) in node.pods.iter().zip(&planned.pods) {
            lines.push(format!(
                "link add pod{host} {queues} address {} netns {here} type veth \
                 peer name eth0 {queues} address {} netns {}",
                mac(Port::PodOnNode, number, host),
                mac(Port::Pod, number, host),
                pod.netns.path().display(),
            ));
        }
    }
    fabric.ip(&lines)
}

fn set_up_fabric(fabric: &NetNs, plan: &[NodePlan<'_>]) -> Result<()> {
    quiet(fabric)?;
    // For IPv6, binding to an address that only a route makes local needs this; IPv4 allows it.
    fabric.set(&[("ipv6/ip_nonlocal_bind", "1")])?;
    let mut lines = vec![
        "link set lo up".to_owned(),
        format!("link set br0 address {} up", mac(Port::Uplink, FABRIC, 0)),
        format!("address add {}/24 dev br0", node4(FABRIC)),
        format!("address add {}/64 dev br0 nodad", node6(FABRIC)),
        // Every address of the ClusterIP ranges is local on the fabric.
        "route add local 10.96.0.0/12 dev lo".to_owned(),
        "route add local fd00:96::/112 dev lo".to_owned(),
    ];
    for node in plan {
        lines.extend(route_to(node.number, "br0"));
    }
    fabric.ip(&lines)
}

fn set_up_node(node: &Node, planned: &NodePlan<'_>, plan: &[NodePlan<'_>]) -> Result<()> {
    let number = planned.number;
    quiet(&node.netns)?;
    let mut lines = vec!["link set lo up".to_owned()];
    let others = plan.iter().map(|other| other.number).filter(|other| *other != number);
    lines.extend(uplink(number, others));
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

/// Sets up the uplink of node `number`, with ways to these other nodes.
pub(crate) fn uplink(number: u8, others: impl IntoIterator<Item = u8>) -> Vec<String> {
    let mut lines = vec![
        "link set eth0 up".to_owned(),
        format!("address add {}/24 dev eth0", node4(number)),
        format!("address add {}/64 dev eth0 nodad", node6(number)),
        format!("route add default via {}", node4(FABRIC)),
        format!("route add default via {}", node6(FABRIC)),
    ];
    lines.extend(neighbour(FABRIC, "eth0"));
    lines.extend(others.into_iter().flat_map(|other| route_to(other, "eth0")));
    lines
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

/// Waits until packets pass both ways: the kernel brings links up later, and loses earlier packets.
fn wait_for_links(pod: &Pod) -> Result<()> {
    pod.netns.run(|| {
        let ipv6 = has_ipv6().then(|| IpAddr::from(node6(FABRIC)));
        for address in [IpAddr::from(node4(FABRIC))].into_iter().chain(ipv6) {
            until(&format!("a way from pod {} to {address}", pod.name), PATIENCE, || {
                // Nothing listens there; a refusal shows that packets pass both ways.
                let to = SocketAddr::from((address, 1));
                Ok(match TcpStream::connect_timeout(&to, patient(Duration::from_millis(20))) {
                    Err(error) if error.kind() != io::ErrorKind::ConnectionRefused => Err(error),
                    _ => Ok(()),
                })
            })?;
        }
        Ok(())
    })
}

/// Enables forwarding; disables duplicate address detection and router advertisements.
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

/// Permanent neighbours, so that no first packet waits for address resolution.
fn neighbour(number: u8, device: &str) -> [String; 2] {
    let there = mac(Port::Uplink, number, 0);
    [
        format!("neigh add {} lladdr {there} dev {device} nud permanent", node4(number)),
        format!("neigh add {} lladdr {there} dev {device} nud permanent", node6(number)),
    ]
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

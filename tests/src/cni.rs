//! Pods whose network is made by CNI plugins, called as a container runtime calls them (CNI specification 1.0: JSON as input,
//! variables for the rest).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd as _;
use std::process;
use std::rc::Rc;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::cgroup::Cgroup;
use crate::cluster::Cluster;
use crate::netns::NetNs;
use crate::pod::Pod;
use crate::room::Room;
use crate::town::{EAST, WEST};

/// The pods of a town, and their nodes.
const PODS: [(&str, &str); 4] = [("client", WEST), ("near", WEST), ("next", WEST), ("far", EAST)];
/// What a runtime tells all plugins of the network; each takes what it knows.
const VERSION: &str = "0.4.0";

/// What a network is made of for a pod: the configurations of its plugins, in order.
pub type Plugins<'a> = &'a dyn Fn(Place<'_>) -> Vec<Value>;

/// A pod that is to be added to a network.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Its name.
    pub pod: &'a str,
    /// Its node's number in the lab.
    pub number: u8,
}

impl Place<'_> {
    /// Addresses for pods of this node, from the plugin `host-local`.
    #[must_use]
    pub fn pods(self) -> Value {
        json!({
            "type": "host-local", "dataDir": "/run/cni/networks",
            "ranges": [[{"subnet": format!("10.244.{}.0/24", self.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        })
    }

    /// Addresses of the nodes' own network for pods of this node, from the same plugin.
    #[must_use]
    pub fn beside_nodes(self) -> Value {
        let first = 100 + 10 * self.number;
        json!({
            "type": "host-local", "dataDir": "/run/cni/networks",
            "ranges": [[{
                "subnet": "172.30.0.0/24", "gateway": "172.30.0.254",
                "rangeStart": format!("172.30.0.{first}"),
                "rangeEnd": format!("172.30.0.{}", first + 9),
            }]],
            "routes": [{"dst": "0.0.0.0/0"}],
        })
    }
}

/// Makes the pods of a town with this network.
///
/// # Errors
/// A plugin fails; the error has what it says.
pub fn pods(cluster: &Cluster, rooms: &[Rc<Room<'_>>; 2], plugins: Plugins<'_>) -> Result<Vec<Pod>> {
    let names: Vec<String> = PODS.iter().map(|(pod, _)| cluster.prefix().name(pod)).collect();
    let mut pods = Vec::new();
    for (netns, (name, node)) in NetNs::make(&names)?.into_iter().zip(PODS) {
        let room = &rooms[usize::from(node == EAST)];
        let place = Place { pod: name, number: if node == EAST { 2 } else { 1 } };
        netns.ip(&["link set lo up".to_owned()])?;
        let ipv4 = attach(room, &netns, name, &plugins(place))?;
        let cgroup = Cgroup::make(cluster.node(node)?.cgroup_path(), name)?;
        let (name, node) = (name.to_owned(), node.to_owned());
        pods.push(Pod { name, node, ipv4, ipv6: Ipv6Addr::UNSPECIFIED, cgroup, netns });
    }
    Ok(pods)
}

/// Adds a pod to a network, and returns its address.
fn attach(room: &Room<'_>, netns: &NetNs, pod: &str, plugins: &[Value]) -> Result<Ipv4Addr> {
    let mut result = Value::Null;
    for plugin in plugins {
        let mut configuration = plugin.clone();
        configuration["cniVersion"] = VERSION.into();
        configuration["name"] = "pods".into();
        if !result.is_null() {
            configuration["prevResult"] = result;
        }
        let kind = plugin["type"].as_str().context("a plugin has a type")?;
        // The room has no /run/netns.
        let place = format!("/proc/{}/fd/{}", process::id(), netns.file().as_raw_fd());
        let said = room.run_fed(
            &format!("/usr/lib/cni/{kind}"),
            &configuration.to_string(),
            &[
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", pod),
                ("CNI_NETNS", &place),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/usr/lib/cni"),
            ],
        )?;
        result = serde_json::from_str(&said).with_context(|| format!("{kind}: {said}"))?;
    }
    let address = result["ips"][0]["address"].as_str().and_then(|it| it.split('/').next());
    Ok(address.with_context(|| format!("no address: {result}"))?.parse()?)
}

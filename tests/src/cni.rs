//! Pods whose network is made by CNI plugins, called as a container runtime calls them (CNI specification 1.0: JSON as input,
//! variables for the rest).

use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::process;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::netns::NetNs;
use crate::room::Room;
use crate::town::Place;

/// What a runtime tells all plugins of the network; each takes what it knows.
const VERSION: &str = "0.4.0";

/// What a network is made of for a pod: the configurations of its plugins, in order.
pub type Plugins<'a> = &'a dyn Fn(Place<'_>) -> Vec<Value>;

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

/// Adds a pod to a network, and returns its address.
///
/// # Errors
/// A plugin fails; the error has what it says.
pub fn attach(
    room: &Room<'_>,
    netns: &NetNs,
    place: Place<'_>,
    plugins: Plugins<'_>,
) -> Result<Ipv4Addr> {
    let mut result = Value::Null;
    for plugin in &plugins(place) {
        let mut configuration = plugin.clone();
        configuration["cniVersion"] = VERSION.into();
        configuration["name"] = "pods".into();
        if !result.is_null() {
            configuration["prevResult"] = result;
        }
        let kind = plugin["type"].as_str().context("a plugin has a type")?;
        // The room has no /run/netns.
        let namespace = format!("/proc/{}/fd/{}", process::id(), netns.file().as_raw_fd());
        let said = room.run_fed(
            &format!("/usr/lib/cni/{kind}"),
            &configuration.to_string(),
            &[
                ("CNI_COMMAND", "ADD"),
                ("CNI_CONTAINERID", place.pod),
                ("CNI_NETNS", &namespace),
                ("CNI_IFNAME", "eth0"),
                ("CNI_PATH", "/usr/lib/cni"),
            ],
        )?;
        result = serde_json::from_str(&said).with_context(|| format!("{kind}: {said}"))?;
    }
    let address = result["ips"][0]["address"].as_str().and_then(|it| it.split('/').next());
    Ok(address.with_context(|| format!("no address: {result}"))?.parse()?)
}

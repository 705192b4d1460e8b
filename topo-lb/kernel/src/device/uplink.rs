//! Uplinks: the devices by which clients outside of this node come.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use super::address::{each, is_link_local, primary};
use super::link::{Link, links};
use super::{Device, Pattern};
use topo_lb_core::flag::EXTERNAL_DEVICES;

/// Kinds of devices that hosts make for guests, with an address of the guests' network. They are
/// uplinks only with the host's own address, as in a node that is a container or whose uplink is part
/// of a bridge.
const OF_GUESTS: [&str; 4] = ["bridge", "openvswitch", "tun", "veth"];
/// The kind of devices that carry no packets; proxies give them addresses of Services.
const DUMMY: &str = "dummy";

/// Begins of the names of devices without an Ethernet header by which network plugins lead to Pods of other
/// nodes, with an address of a Pod: no client dials a Service there. IPIP and WireGuard of Calico, Flannel,
/// Cilium and Antrea.
const OF_NETWORK_PLUGINS: [&str; 6] =
    ["tunl", "wireguard.cali", "wg-v6.cali", "flannel", "cilium", "antrea"];

/// The devices by which clients outside come.
#[derive(Debug, Default)]
pub struct Uplinks {
    /// Those on which programs can serve them.
    pub served: Vec<Device>,
    /// Those that are up, and whose packets have no Ethernet header, as of WireGuard, other VPNs, and PPP:
    /// the programs read one.
    pub unserved: Vec<Device>,
}

/// The devices that match a pattern or, without patterns, that have an address of this host.
///
/// # Errors
/// The kernel does not list devices or addresses.
pub fn uplinks(patterns: &[Pattern]) -> io::Result<Uplinks> {
    let mut addresses = BTreeMap::<String, Vec<IpAddr>>::new();
    if patterns.is_empty() {
        each(|it| addresses.entry(it.device.clone()).or_default().push(it.address))?;
    }
    let primary = primary();
    let is_chosen = |link: &Link| {
        let name = &link.device.name;
        if patterns.is_empty() {
            let own = addresses.get(name).map_or(&[][..], Vec::as_slice);
            if link.is_ethernet {
                is_uplink(link.kind.as_deref(), own, &primary)
            } else {
                !own.iter().all(is_link_local)
                    && !OF_NETWORK_PLUGINS.iter().any(|begin| name.starts_with(begin))
            }
        } else {
            patterns.iter().any(|pattern| pattern.matches(name))
        }
    };
    let mut uplinks = Uplinks::default();
    for link in links()?.into_iter().filter(is_chosen) {
        if link.is_ethernet {
            uplinks.served.push(link.device);
        } else if link.is_up && !link.is_loopback {
            uplinks.unserved.push(link.device);
        }
    }
    Ok(uplinks)
}

/// What to do about [`Uplinks::unserved`].
#[must_use]
pub fn remedy() -> String {
    format!(
        "let them dial an address behind another device or another node, or let kube-proxy serve this node; \
         if they are no clients of Services, name the devices of those that are with {EXTERNAL_DEVICES}"
    )
}

/// One sentence about [`Uplinks::unserved`]; `None` if there are none.
#[must_use]
pub fn unserved(devices: &[Device]) -> Option<String> {
    let (first, more) = devices.split_first()?;
    let name = &first.name;
    let more = match more.len() {
        0 => String::new(),
        more => format!(" (and {more} more like that)"),
    };
    Some(format!(
        "clients that come by {name}{more} are not served, as packets there have no Ethernet header"
    ))
}

/// Whether a device of this kind with these addresses is an uplink; `primary`: the host's own ones.
fn is_uplink(kind: Option<&str>, addresses: &[IpAddr], primary: &[IpAddr]) -> bool {
    match kind {
        Some(DUMMY) => false,
        Some(kind) if OF_GUESTS.contains(&kind) => {
            addresses.iter().any(|address| primary.contains(address))
        }
        _ => !addresses.iter().all(is_link_local),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_uplink_has_an_address_of_the_host() {
        let primary: [IpAddr; 2] = [[192, 0, 2, 1].into(), "2001:db8::1".parse().expect("one")];
        for (kind, addresses, wanted) in [
            (None, "192.0.2.1", true),
            (None, "198.51.100.1", true),
            (Some("bond"), "198.51.100.1", true),
            // Replies can leave by it.
            (Some("vxlan"), "10.244.1.0", true),
            (None, "169.254.7.7 fe80::1", false),
            (None, "", false),
            // A node in a container; kindnet's and a bridge's addresses.
            (Some("veth"), "192.0.2.1 fe80::1", true),
            (Some("veth"), "2001:db8::1", true),
            (Some("veth"), "10.244.1.1", false),
            (Some("bridge"), "10.244.1.1", false),
            (Some("bridge"), "192.0.2.1", true),
            // kube-ipvs0, nodelocaldns.
            (Some("dummy"), "10.96.0.1 192.0.2.1", false),
        ] {
            let own: Vec<IpAddr> =
                addresses.split_whitespace().map(|text| text.parse().expect("one")).collect();
            assert_eq!(is_uplink(kind, &own, &primary), wanted, "{kind:?} with {addresses:?}");
        }
    }
}

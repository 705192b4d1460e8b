//! Uplinks: the devices by which clients outside of this node come.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;

use super::address::{each, is_link_local, primary};
use super::link::{Link, links};
use super::{Device, Pattern};

/// Kinds of devices that hosts make for guests, with an address of the guests' network. They are
/// uplinks only with the host's own address, as in a node that is a container or whose uplink is part
/// of a bridge.
const OF_GUESTS: [&str; 4] = ["bridge", "openvswitch", "tun", "veth"];
/// The kind of devices that carry no packets; proxies give them addresses of Services.
const DUMMY: &str = "dummy";

/// The uplinks: Ethernet devices that match a pattern or, without patterns, that have an address of
/// this host.
///
/// # Errors
/// The kernel does not list devices or addresses.
pub fn uplinks(patterns: &[Pattern]) -> io::Result<Vec<Device>> {
    let mut addresses = BTreeMap::<String, Vec<IpAddr>>::new();
    if patterns.is_empty() {
        each(|it| addresses.entry(it.device.clone()).or_default().push(it.address))?;
    }
    let primary = primary();
    let is_chosen = |link: &Link| {
        let name = &link.device.name;
        link.is_ethernet
            && if patterns.is_empty() {
                let own = addresses.get(name).map_or(&[][..], Vec::as_slice);
                is_uplink(link.kind.as_deref(), own, &primary)
            } else {
                patterns.iter().any(|pattern| pattern.matches(name))
            }
    };
    Ok(links()?.into_iter().filter(is_chosen).map(|link| link.device).collect())
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

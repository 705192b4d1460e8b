//! Whether packets to other nodes leave by the same device by which clients outside come.

use std::io;
use std::net::IpAddr;

use super::Device;
use super::address::{Listed, each, is_link_local, passing, primary};
use super::link::{Link, links};

/// Kinds of devices behind which only this node is: its Pods, and bridges for them.
const OF_THIS_NODE: [&str; 4] = ["bridge", "dummy", "ifb", "veth"];
/// Kinds of devices that guests have at a bridge. A `tun` can be one of a virtual machine, but also of a VPN.
const AT_BRIDGES: [&str; 3] = ["dummy", "ifb", "veth"];

/// The one device that leads to other nodes, with the addresses that its packets have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoleUplink {
    /// The device.
    pub device: Device,
    /// Its Ethernet address, or zeros.
    pub ethernet: [u8; 6],
    /// One of each family: the one that it had before if it is still there, or else the host's own one, or
    /// else its first one.
    pub addresses: Vec<IpAddr>,
}

/// The uplink if there is one, and no other device leads to other nodes; otherwise a sentence that says
/// what else does. `before`: the addresses that earlier connections have.
///
/// # Errors
/// The kernel does not list devices or addresses.
pub fn sole_uplink(
    uplinks: &[Device],
    before: &[IpAddr],
) -> io::Result<Result<SoleUplink, String>> {
    let passing = passing();
    let mut listed = Vec::new();
    each(|it| {
        // One that is deprecated by now stays for the connections that have it.
        if !passing.contains(&it.address) || before.contains(&it.address) {
            listed.push(it.clone());
        }
    })?;
    Ok(sole(uplinks, &links()?, &listed, &primary(), before))
}

fn sole(
    uplinks: &[Device],
    links: &[Link],
    listed: &[Listed],
    primary: &[IpAddr],
    before: &[IpAddr],
) -> Result<SoleUplink, String> {
    let [device] = uplinks else {
        let names: Vec<&str> = uplinks.iter().map(|uplink| &*uplink.name).collect();
        let by = if names.is_empty() { "no device".to_owned() } else { names.join(" and ") };
        return Err(format!("clients come by {by}"));
    };
    if let Some(other) = links.iter().find(|link| leads_elsewhere(link, device, links, listed)) {
        return Err(format!("{} may lead to other nodes, too", other.device.name));
    }
    let own = listed.iter().filter(|it| it.device == device.name && !is_link_local(&it.address));
    let mut own: Vec<&Listed> = own.collect();
    // A single address is one of a service that may move to another node, unless there are no others.
    own.sort_by_key(|it| {
        let is = |of: &[IpAddr]| of.contains(&it.address);
        (it.address.is_ipv6(), it.is_single, !is(before), !is(primary))
    });
    // The kernel would take the source by the route.
    let differs = |a: &Listed, b: &Listed| {
        let are_alike = a.address.is_ipv4() == b.address.is_ipv4() && !a.is_single && !b.is_single;
        are_alike && a.network != b.network
    };
    if let Some([a, b]) = own.array_windows().find(|[a, b]| differs(a, b)) {
        return Err(format!(
            "{} has addresses of two networks, {} and {}",
            device.name, a.address, b.address
        ));
    }
    let mut addresses: Vec<IpAddr> = own.into_iter().map(|it| it.address).collect();
    addresses.dedup_by_key(|address| address.is_ipv6());
    // The kernel takes an address of another device for packets of such a family.
    let has = |of: &IpAddr| addresses.iter().any(|address| address.is_ipv6() == of.is_ipv6());
    if let Some(other) = primary.iter().find(|address| !has(address)) {
        return Err(format!("{other} is no lasting address of {}", device.name));
    }
    let ethernet = links.iter().find(|link| link.device == *device).map(|link| link.ethernet);
    Ok(SoleUplink { device: device.clone(), ethernet: ethernet.unwrap_or_default(), addresses })
}

/// Whether packets to another node can leave by a device besides the uplink.
fn leads_elsewhere(link: &Link, uplink: &Device, links: &[Link], listed: &[Listed]) -> bool {
    if link.device == *uplink || !link.is_up || link.is_loopback {
        return false;
    }
    let kind = link.kind.as_deref().unwrap_or_default();
    if link.master.is_some() {
        return !AT_BRIDGES.contains(&kind) && !is_port_of(link, uplink, links);
    }
    // A node in a container can have a second network by such a device. Those of Pods have addresses of
    // a single one, if any.
    let has_network = |it: &Listed| it.device == link.device.name && !it.is_single;
    let is_second =
        kind == "veth" && listed.iter().any(|it| has_network(it) && !is_link_local(&it.address));
    !OF_THIS_NODE.contains(&kind) || is_second
}

/// Whether all packets of a device pass the uplink.
fn is_port_of(link: &Link, uplink: &Device, links: &[Link]) -> bool {
    let mut master = link.master;
    // A port of a bond, which is a port of a bridge.
    for _ in 0..links.len() {
        match master {
            Some(index) if index == uplink.index => return true,
            Some(index) => {
                let next = links.iter().find(|link| link.device.index == index);
                master = next.and_then(|link| link.master);
            }
            None => return false,
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    fn link(index: u32, name: &str, kind: &str) -> Link {
        Link {
            device: Device { index, name: name.to_owned() },
            is_ethernet: true,
            ethernet: [2, 0, 0, 0, 0, index as u8],
            is_loopback: name == "lo",
            is_up: true,
            kind: (!kind.is_empty()).then(|| kind.to_owned()),
            master: None,
            xdp: None,
        }
    }

    fn listed(device: &str, address: &str) -> Listed {
        let (address, prefix) = address.split_once('/').expect("a prefix");
        let address: IpAddr = address.parse().expect("an address");
        let is_single = prefix == if address.is_ipv4() { "32" } else { "128" };
        let network = match address {
            _ if is_single => address,
            // All others here have these prefixes.
            IpAddr::V4(address) => (address & Ipv4Addr::new(255, 255, 255, 0)).into(),
            IpAddr::V6(address) => (address & Ipv6Addr::from_bits(u128::MAX << 64)).into(),
        };
        Listed { address, device: device.to_owned(), network, is_single }
    }

    /// What is said of a node with `eth0` and this one more device.
    fn with(link: Link, addresses: &[&str]) -> Result<SoleUplink, String> {
        let eth0 = self::link(2, "eth0", "");
        let name = link.device.name.clone();
        let links = [self::link(1, "lo", ""), eth0.clone(), link];
        let mut all = vec![listed("eth0", "192.0.2.1/24"), listed("lo", "127.0.0.1/8")];
        all.extend(addresses.iter().map(|address| listed(&name, address)));
        sole(&[eth0.device], &links, &all, &[], &[])
    }

    #[test]
    fn devices_of_pods_and_what_is_down_lead_to_no_other_node() {
        let port = |kind, master| Link { master: Some(master), ..link(3, "other", kind) };
        for (link, addresses) in [
            (link(3, "veth7", "veth"), &["10.244.1.1/32", "fe80::1/64"][..]),
            (link(3, "cni0", "bridge"), &["10.244.1.1/24"]),
            (link(3, "kube-ipvs0", "dummy"), &["10.96.0.1/32"]),
            (Link { is_up: false, ..link(3, "tunl0", "ipip") }, &[]),
            (port("veth", 9), &[]),
            (port("", 2), &[]),
        ] {
            let wanted = Ok(SoleUplink {
                device: Device { index: 2, name: "eth0".to_owned() },
                ethernet: [2, 0, 0, 0, 0, 2],
                addresses: vec![[192, 0, 2, 1].into()],
            });
            assert_eq!(with(link.clone(), addresses), wanted, "{link:?}");
        }
    }

    #[test]
    fn a_tunnel_a_second_card_or_a_second_network_may_lead_to_other_nodes() {
        let port = |kind, master| Link { master: Some(master), ..link(3, "other", kind) };
        for (link, addresses) in [
            (link(3, "other", "vxlan"), &["10.244.1.0/32"][..]),
            (link(3, "other", "wireguard"), &[]),
            (link(3, "other", "tun"), &[]),
            (link(3, "other", ""), &[]),
            (link(3, "other", "bond"), &[]),
            (link(3, "other", "veth"), &["172.19.0.2/16"]),
            (port("", 9), &[]),
            (port("tun", 9), &[]),
            (port("vxlan", 9), &[]),
        ] {
            let wanted = Err("other may lead to other nodes, too".to_owned());
            assert_eq!(with(link.clone(), addresses), wanted, "{link:?}");
        }
    }

    #[test]
    fn ports_of_the_uplink_are_its_own() {
        let of = |index, name, kind, master| Link { master, ..link(index, name, kind) };
        let links = [
            of(2, "eth0", "", Some(3)),
            of(3, "bond0", "bond", Some(4)),
            of(4, "br0", "bridge", None),
        ];
        let uplink = links[2].device.clone();
        let all = [listed("br0", "192.0.2.1/24")];
        assert!(sole(&[uplink], &links, &all, &[], &[]).is_ok());
        let bond = links[1].device.clone();
        let said = sole(&[bond], &links[..2], &all, &[], &[]).expect("a device");
        assert_eq!(said.addresses, Vec::<IpAddr>::new());
    }

    /// The addresses of the uplink's packets, of these that it has.
    fn of(all: &[&str], primary: &[&str], before: &[&str]) -> Result<Vec<String>, String> {
        let eth0 = link(2, "eth0", "");
        let all: Vec<Listed> = all.iter().map(|address| listed("eth0", address)).collect();
        let parse = |all: &[&str]| -> Vec<IpAddr> {
            all.iter().map(|address| address.parse().expect("an address")).collect()
        };
        let (primary, before) = (parse(primary), parse(before));
        let uplinks = [eth0.device.clone()];
        let uplink = sole(&uplinks, &[eth0], &all, &primary, &before)?;
        Ok(uplink.addresses.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn packets_have_the_hosts_own_address_of_each_family_and_keep_it() {
        let all = ["192.0.2.7/24", "192.0.2.1/24", "192.0.2.9/32", "fe80::1/64", "2001:db8::1/64"];
        let wanted = |four: &str| Ok(vec![four.to_owned(), "2001:db8::1".to_owned()]);
        assert_eq!(of(&all, &[], &[]), wanted("192.0.2.7"));
        assert_eq!(of(&all, &["192.0.2.1"], &[]), wanted("192.0.2.1"));
        assert_eq!(of(&all, &["192.0.2.1"], &["192.0.2.7"]), wanted("192.0.2.7"));
        assert_eq!(of(&all, &["192.0.2.1"], &["192.0.2.8"]), wanted("192.0.2.1"));
        // An address that may move to another node.
        assert_eq!(of(&all, &["192.0.2.9"], &["192.0.2.9"]), wanted("192.0.2.7"));
        assert_eq!(of(&["192.0.2.9/32"], &[], &[]), Ok(vec!["192.0.2.9".to_owned()]));
    }

    #[test]
    fn a_second_network_of_a_family_is_left_to_the_kernel() {
        let said = of(&["192.0.2.1/24", "198.51.100.1/24"], &[], &[]);
        let wanted = "eth0 has addresses of two networks, 192.0.2.1 and 198.51.100.1";
        assert_eq!(said, Err(wanted.to_owned()));
    }

    #[test]
    fn a_family_without_an_address_at_the_uplink_is_left_to_the_kernel() {
        let said = of(&["192.0.2.1/24", "fe80::1/64"], &["2001:db8::1"], &[]);
        assert_eq!(said, Err("2001:db8::1 is no lasting address of eth0".to_owned()));
    }

    #[test]
    fn two_uplinks_are_named() {
        let (a, b) = (link(2, "eth0", ""), link(3, "eth1", ""));
        let said = sole(&[a.device.clone(), b.device.clone()], &[a, b], &[], &[], &[]);
        assert_eq!(said, Err("clients come by eth0 and eth1".to_owned()));
    }
}

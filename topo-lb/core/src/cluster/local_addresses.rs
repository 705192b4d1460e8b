//! Addresses of this host, and those of them at which node ports are served.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;

use ipnet::IpNet;

/// Addresses of this host's devices, without loopback and link-local ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalAddresses {
    /// Each address, and the name of a device that has it.
    pub by_device: BTreeMap<IpAddr, Arc<str>>,
    /// The host's own address of each family: the source of its packets by the default route.
    /// `device::address` has the rule for a host without such a route.
    pub primary: Vec<IpAddr>,
}

/// At which addresses of this host node ports are served.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The primary address of each family, as kube-proxy's nftables mode by default.
    #[default]
    Primary,
    /// Every address, as kube-proxy's iptables mode by default.
    All,
    /// Addresses in any of these ranges.
    In(Vec<IpNet>),
}

impl NodePortAddresses {
    /// Those of `local` at which node ports are served.
    #[must_use]
    pub fn select(&self, local: &LocalAddresses) -> Vec<IpAddr> {
        let all = local.by_device.keys().copied();
        match self {
            Self::Primary => local.primary.clone(),
            Self::All => all.collect(),
            Self::In(ranges) => {
                all.filter(|address| ranges.iter().any(|range| range.contains(address))).collect()
            }
        }
    }
}

impl FromStr for NodePortAddresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "primary" => Ok(Self::Primary),
            "all" => Ok(Self::All),
            text => {
                let range = |text: &str| {
                    text.trim().parse().map_err(|_| {
                        format!(
                            "{:?} is neither `primary` nor `all` nor a range such as 192.0.2.0/24",
                            text.trim()
                        )
                    })
                };
                text.split(',').map(range).collect::<Result<_, _>>().map(Self::In)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ports_are_at_the_chosen_addresses() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let [own, bridge, six] = ["172.30.0.1", "10.244.1.1", "fd00:30::1"].map(address);
        let local = LocalAddresses {
            by_device: [own, bridge, six].map(|address| (address, "eth0".into())).into(),
            primary: vec![own, six],
        };
        let select = |text: &str| text.parse::<NodePortAddresses>().expect(text).select(&local);
        assert_eq!(select("primary"), [own, six]);
        assert_eq!(select("all"), [bridge, own, six]);
        assert_eq!(select("10.0.0.0/8, fd00:30::/64"), [bridge, six]);
        assert!(select("192.0.2.0/24").is_empty());
        let error = "10.0.0.0/8,first".parse::<NodePortAddresses>().expect_err("not a range");
        assert!(error.starts_with("\"first\" is neither"), "{error}");
    }
}

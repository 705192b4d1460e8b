//! Follows the addresses of this host's devices.

use std::collections::BTreeMap;
use std::fs::read_to_string;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use tokio::time::sleep;
use tracing::warn;

use super::follow::Changes;
use topo_lb_core::cluster::LocalAddresses;
use topo_lb_core::once::Once;

/// Devices whose addresses do not mean that a process serves there: kube-proxy's IPVS mode and
/// kube-router give them every ClusterIP, so that the kernel accepts the packets.
const PROXIES: [&str; 2] = ["kube-ipvs0", "kube-dummy-if"];
/// How long changes are gathered: proxies and CNIs make many at once.
const GATHER: Duration = Duration::from_millis(200);
/// Pause before a retry after an error.
const AGAIN: Duration = Duration::from_secs(2);

/// All addresses at once, then after every change. Never ends.
pub fn follow() -> impl Stream<Item = LocalAddresses> + Send {
    stream::unfold(Follower::default(), async |mut follower| {
        Some((follower.next().await, follower))
    })
}

#[derive(Default)]
struct Follower {
    changes: Option<Changes>,
    /// The last addresses returned.
    said: Option<LocalAddresses>,
    failing: Once,
}

impl Follower {
    async fn next(&mut self) -> LocalAddresses {
        loop {
            match self.look().await {
                Ok(all) => {
                    self.failing.clear();
                    if self.said.as_ref() != Some(&all) {
                        self.said = Some(all.clone());
                        return all;
                    }
                }
                Err(error) => {
                    self.changes = None;
                    if self.failing.begins(()) {
                        warn!(
                            "the addresses of this host cannot be listed ({error}): a ClusterIP that \
                             a device of this host has may be handled; the agent retries every {} s",
                            AGAIN.as_secs()
                        );
                    }
                    if self.said.is_none() {
                        // Startup must not wait for it.
                        return self.said.insert(LocalAddresses::default()).clone();
                    }
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// All addresses: the first time at once, later after a change.
    async fn look(&mut self) -> io::Result<LocalAddresses> {
        match &mut self.changes {
            Some(changes) => {
                changes.changed().await?;
                sleep(GATHER).await;
            }
            // Listening begins before the listing, so no change is missed.
            None => self.changes = Some(Changes::of_addresses()?),
        }
        all()
    }
}

/// All addresses except those of proxies, each with the first device by name, and the primary ones.
fn all() -> io::Result<LocalAddresses> {
    let mut by_device = BTreeMap::new();
    each(|it| take(&mut by_device, it))?;
    Ok(LocalAddresses { primary: primary(), by_device })
}

/// The host's own address of each family.
pub(super) fn primary() -> Vec<IpAddr> {
    let mut listed = Vec::new();
    // Where nothing can be listed, the routing table may still say it.
    let _ = each(|it| {
        let mut one = BTreeMap::new();
        take(&mut one, it);
        listed.extend(one.into_keys().map(|address| (is_hardware(&it.device), address)));
    });
    FAR_AWAY.into_iter().filter_map(|there| primary_of(there, source_towards, &listed)).collect()
}

/// Addresses on the Internet to which only a default route leads: those of a.root-servers.net. Nothing
/// is sent there. Addresses for documentation would not do, as test networks have routes to them.
pub(crate) const FAR_AWAY: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 41, 0, 4)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0x503, 0xba3e, 0, 0, 0, 2, 0x30)),
];

/// The primary address of the family of `there`: the source of packets by the default route; without one,
/// the first address in the kernel's order, of hardware before other devices.
fn primary_of(
    there: IpAddr,
    source: impl FnOnce(IpAddr) -> Option<IpAddr>,
    listed: &[(bool, IpAddr)],
) -> Option<IpAddr> {
    let of_family = |address: &IpAddr| address.is_ipv4() == there.is_ipv4();
    let first = || {
        let mut all: Vec<_> = listed.iter().filter(|(_, address)| of_family(address)).collect();
        all.sort_by_key(|(is_hardware, _)| !is_hardware);
        all.first().map(|(_, address)| *address)
    };
    source(there).filter(|source| !source.is_loopback()).or_else(first)
}

/// The source of packets of this host to an address, by the routing table; sends nothing.
fn source_towards(there: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match there {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect((there, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether a device is hardware, also that of a virtual machine: the others have no `device`.
fn is_hardware(device: &str) -> bool {
    Path::new("/sys/class/net").join(device).join("device").exists()
}

/// An address of this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) address: IpAddr,
    /// The name of its device.
    pub(super) device: String,
    /// The address of its network.
    pub(super) network: IpAddr,
    /// Whether its network has no other address: `/32` or `/128`.
    pub(super) is_single: bool,
}

/// Whether an address is of one link alone.
pub(super) const fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// Flags of an IPv6 address that is not used yet, or not for long: `IFA_F_TEMPORARY`, `IFA_F_OPTIMISTIC`,
/// `IFA_F_DADFAILED`, `IFA_F_DEPRECATED`, `IFA_F_TENTATIVE`, include/uapi/linux/if_addr.h.
const PASSING: u8 = 0x01 | 0x04 | 0x08 | 0x20 | 0x40;

/// The IPv6 addresses that are not used yet, or not for long.
pub(super) fn passing() -> Vec<IpAddr> {
    // Without IPv6 there is no such file.
    passing_of(&read_to_string("/proc/net/if_inet6").unwrap_or_default())
}

/// Lines of `if6_seq_show`, net/ipv6/addrconf.c: address, index, prefix, scope, flags, device.
fn passing_of(listed: &str) -> Vec<IpAddr> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u128::from_str_radix(words.next()?, 16).ok()?;
        let flags = u8::from_str_radix(words.nth(3)?, 16).ok()?;
        (flags & PASSING != 0).then(|| Ipv6Addr::from_bits(address).into())
    };
    listed.lines().filter_map(address).collect()
}

/// Calls `see` with every address of this host.
pub(super) fn each(mut see: impl FnMut(&Listed)) -> io::Result<()> {
    let ip = |address: SockaddrStorage| {
        let four = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        four.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::from(address.ip())))
    };
    for entry in getifaddrs()? {
        let Some(address) = entry.address.and_then(ip) else { continue };
        // An IPv4 address can have a label: its device's name, `:`, and a text.
        let device = entry.interface_name.split(':').next().unwrap_or_default();
        let device = device.escape_debug().to_string();
        let mask = entry.netmask.and_then(ip);
        let network = match (address, mask) {
            (IpAddr::V4(address), Some(IpAddr::V4(mask))) => (address & mask).into(),
            (IpAddr::V6(address), Some(IpAddr::V6(mask))) => (address & mask).into(),
            _ => address,
        };
        let is_single = mask.is_some_and(|mask| match mask {
            IpAddr::V4(mask) => mask == Ipv4Addr::BROADCAST,
            IpAddr::V6(mask) => mask.to_bits() == u128::MAX,
        });
        see(&Listed { address, device, network, is_single });
    }
    Ok(())
}

/// Adds an address, unless no Service can be served there.
fn take(all: &mut BTreeMap<IpAddr, Arc<str>>, Listed { address, device, .. }: &Listed) {
    // Every Pod's device has a link-local address, so these change often.
    let is_link_local = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    if is_link_local || address.is_loopback() || PROXIES.contains(&&**device) {
        return;
    }
    let first = all.entry(*address).or_insert_with(|| device.as_str().into());
    if **device < **first {
        *first = device.as_str().into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        let mut all = BTreeMap::new();
        for (address, device) in pairs {
            let (address, device) = (address.parse().expect("an address"), device.to_string());
            take(&mut all, &Listed { address, device, network: address, is_single: false });
        }
        all.iter().map(|(address, device)| (address.to_string(), device.to_string())).collect()
    }

    #[test]
    fn proxies_and_addresses_that_no_service_can_have_do_not_count() {
        let pairs = [
            ("127.0.0.1", "lo"),
            ("::1", "lo"),
            ("fe80::1", "veth1"),
            ("10.96.0.10", "kube-ipvs0"),
            ("10.96.0.11", "kube-dummy-if"),
            ("10.96.0.10", "nodelocaldns"),
            ("10.96.0.12", "lo"),
        ];
        let wanted = [("10.96.0.10", "nodelocaldns"), ("10.96.0.12", "lo")];
        assert_eq!(taken(&pairs), wanted.map(|(a, b)| (a.to_owned(), b.to_owned())));
    }

    #[test]
    fn of_several_devices_the_first_by_name_is_told_in_whatever_order_they_come() {
        let wanted = [("10.96.0.10".to_owned(), "a".to_owned())];
        assert_eq!(taken(&[("10.96.0.10", "a"), ("10.96.0.10", "b")]), wanted);
        assert_eq!(taken(&[("10.96.0.10", "b"), ("10.96.0.10", "a")]), wanted);
    }

    #[test]
    fn the_primary_address_is_that_of_the_default_route_or_the_first_of_hardware() {
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let [bridge, eth0, eth1, six] =
            ["10.244.1.1", "192.168.0.5", "172.16.0.5", "fd00::5"].map(address);
        let listed = [(false, bridge), (true, eth0), (true, eth1), (false, six)];
        let [four_there, six_there] = FAR_AWAY;
        let found = |there, routed: Option<IpAddr>| primary_of(there, |_| routed, &listed);
        assert_eq!(found(four_there, Some(eth1)), Some(eth1));
        assert_eq!(found(four_there, None), Some(eth0));
        assert_eq!(found(six_there, None), Some(six));
        let loopback = address("127.0.0.1");
        assert_eq!(found(four_there, Some(loopback)), Some(eth0), "it is no node's");
        assert_eq!(primary_of(six_there, |_| None, &listed[..3]), None);
    }

    #[test]
    fn temporary_deprecated_and_tentative_addresses_pass() {
        let listed = "\
            20010db8000000000000000000000001 02 40 00 80 eth0\n\
            20010db8000000000000000000000002 02 40 00 01 eth0\n\
            20010db8000000000000000000000003 02 40 00 20 eth0\n\
            20010db8000000000000000000000004 02 40 00 c0 eth0\n\
            20010db8000000000000000000000005\n";
        let wanted: Vec<IpAddr> = ["2001:db8::2", "2001:db8::3", "2001:db8::4"]
            .map(|address| address.parse().expect("an address"))
            .into();
        assert_eq!(passing_of(listed), wanted);
    }

    #[test]
    fn the_kernel_tells_of_this_host() {
        let mut told = Vec::new();
        each(|it| told.push(it.clone())).expect("the kernel says");
        let (address, network) = ([127, 0, 0, 1].into(), [127, 0, 0, 0].into());
        let loopback = Listed { address, device: "lo".to_owned(), network, is_single: false };
        assert!(told.contains(&loopback), "{told:?}");
    }
}

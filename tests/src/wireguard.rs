//! WireGuard of the kernel, set up as `wg` does: Documentation/netlink/specs/wireguard.yaml.

use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, Result};
use netlink_bindings::traits::NetlinkRequest as _;
use netlink_bindings::{nlctrl, wireguard};
use rustix::net::netlink::GENERIC;
use topo_lb_kernel::netlink::{Netlink, request};

/// Its port, as in WireGuard's own examples.
pub const PORT: u16 = 51_820;

/// Private keys of two nodes, each with its public key, as base64.
pub const KEYS: [[&str; 2]; 2] = [
    [
        "MKpDkMB5rAqpcu0xV5wyDkXCdE0pxmIUV9jDmXK3c2g=",
        "zF5Fe87GwIsat+8dGvhZ63Xcr56MNYmvJVAYzbtAPyo=",
    ],
    [
        "4C4Tn/lPlNzy+2JiXj0BGO1Ub3fBZMYWzv6q8Ftm4Wg=",
        "P2xtjcCPR9kJq7d+TtdpWLv9bE2/H1RK6R/CuocNC24=",
    ],
];

/// `GENL_ID_CTRL`, include/uapi/linux/genetlink.h.
const FAMILIES: u16 = 0x10;

/// Whom a device talks to.
#[derive(Clone, Copy, Debug)]
pub struct Peer<'a> {
    /// Its public key.
    pub key: [u8; 32],
    /// Where it listens.
    pub endpoint: SocketAddr,
    /// Networks behind it, each with the bits of its prefix.
    pub networks: &'a [(IpAddr, u8)],
}

/// Gives a device of this thread's network namespace its private key, [its port](PORT) and its only peer.
///
/// # Errors
/// The kernel has no WireGuard, or refuses.
pub fn set(device: &CStr, key: &[u8; 32], peer: Peer<'_>) -> Result<()> {
    let netlink = Netlink::open(Some(GENERIC))?;
    let mut ask = nlctrl::Request::new().op_getfamily_do();
    drop(ask.encode().push_family_name(c"wireguard"));
    let mut family = None;
    netlink.ask(&request(FAMILIES, ACKNOWLEDGED, ask.payload()), |_, body| {
        family = nlctrl::OpGetfamilyDo::decode_request(body).get_family_id().ok();
    })?;
    let family = family.context("the kernel has no WireGuard")?;
    let mut set = wireguard::Request::new().op_set_device_do();
    let peers = set.encode().push_ifname(device).push_private_key(key).push_listen_port(PORT);
    let entry = peers.array_peers().entry_nested();
    let mut networks =
        entry.push_public_key(&peer.key).push_endpoint(peer.endpoint).array_allowedips();
    for &(address, bits) in peer.networks {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let one = networks.entry_nested().push_family(family as u16).push_ipaddr(address);
        networks = one.push_cidr_mask(bits).end_nested();
    }
    drop(networks);
    netlink.ask(&request(family, ACKNOWLEDGED, set.payload()), |_, _| {})?;
    Ok(())
}

const ACKNOWLEDGED: u16 = libc::NLM_F_ACK as u16;

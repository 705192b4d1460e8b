//! The devices of this network namespace as the kernel describes them (`RTM_GETLINK`).

use std::io;

use bytemuck::{Pod, Zeroable};
use netlink_packet_core::NLM_F_DUMP;

use super::Device;
use crate::netlink::{self, Netlink, attribute, head};

/// `IFLA_ADDRESS`, `IFLA_IFNAME`, `IFLA_MASTER`, `IFLA_LINKINFO`, `IFLA_XDP`, `IFLA_INFO_KIND`,
/// include/uapi/linux/if_link.h.
const ADDRESS: u16 = 1;
const NAME: u16 = 3;
const MASTER: u16 = 10;
const INFO: u16 = 18;
const XDP: u16 = 43;
const KIND: u16 = 1;
/// `IFLA_XDP_PROG_ID` and, if programs are attached in several modes, `IFLA_XDP_DRV_PROG_ID`,
/// `IFLA_XDP_SKB_PROG_ID`, `IFLA_XDP_HW_PROG_ID`.
const XDP_PROGRAMS: [u16; 4] = [4, 5, 6, 7];

/// `struct ifinfomsg`.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Message {
    family: u8,
    padding: u8,
    hardware: u16,
    index: u32,
    flags: u32,
    change: u32,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) device: Device,
    /// Whether packets begin with an Ethernet header.
    pub(crate) is_ethernet: bool,
    /// Its Ethernet address, or zeros.
    pub(crate) ethernet: [u8; 6],
    pub(crate) is_loopback: bool,
    /// Whether it is set up, `ip link set up`.
    pub(crate) is_up: bool,
    /// What made it, for example `veth`; `None` for a device of hardware.
    pub(crate) kind: Option<String>,
    /// Index of the bridge or bond, for example, of which it is a port.
    pub(crate) master: Option<u32>,
    /// The kernel's id of an XDP program.
    pub(crate) xdp: Option<u32>,
}

/// All devices, by index.
///
/// # Errors
/// The kernel does not list them.
pub(crate) fn links() -> io::Result<Vec<Link>> {
    let request =
        netlink::request(libc::RTM_GETLINK, NLM_F_DUMP, bytemuck::bytes_of(&Message::zeroed()));
    let mut all = Vec::new();
    Netlink::open(None)?.ask(&request, |kind, body| {
        if kind == libc::RTM_NEWLINK {
            all.extend(link(body));
        }
    })?;
    all.sort_by_key(|link: &Link| link.device.index);
    Ok(all)
}

fn link(body: &[u8]) -> Option<Link> {
    let Message { hardware, index, flags, .. } = head(body)?;
    let attributes = body.get(size_of::<Message>()..)?;
    let kind = attribute(attributes, INFO).and_then(|info| attribute(info, KIND));
    let program = |xdp| XDP_PROGRAMS.into_iter().find_map(|id| head(attribute(xdp, id)?));
    Some(Link {
        device: Device { index, name: netlink::text(attribute(attributes, NAME)?) },
        is_ethernet: hardware == libc::ARPHRD_ETHER,
        ethernet: attribute(attributes, ADDRESS).and_then(head).unwrap_or_default(),
        is_loopback: hardware == libc::ARPHRD_LOOPBACK,
        is_up: flags & libc::IFF_UP.cast_unsigned() != 0,
        kind: kind.map(netlink::text),
        master: attribute(attributes, MASTER).and_then(head),
        xdp: attribute(attributes, XDP).and_then(program),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_lists_the_loopback_device() {
        let links = links().expect("an answer");
        let wanted = Link {
            device: Device { index: 1, name: "lo".to_owned() },
            is_ethernet: false,
            ethernet: [0; 6],
            is_loopback: true,
            is_up: true,
            kind: None,
            master: None,
            xdp: None,
        };
        assert_eq!(links.first(), Some(&wanted));
    }
}

//! Lists the existing devices.

use std::collections::BTreeMap;
use std::io;

use bytemuck::{Pod, Zeroable};
use rustix::net::{AddressFamily, SocketType, netdevice, socket};

use super::Pattern;
use crate::netlink::{self, Netlink, attribute, head, text};

/// A network device of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The kernel's index; another device may get it after this one is gone.
    pub index: u32,
    /// The name in `ip link`.
    pub name: String,
}

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

/// The devices that match a pattern. Only Ethernet: the programs read an Ethernet header.
///
/// # Errors
/// The kernel does not list them.
pub fn chosen(patterns: &[Pattern]) -> io::Result<Vec<Device>> {
    let mut devices = Vec::new();
    each(|hardware, index, name| {
        let is_ethernet = hardware == libc::ARPHRD_ETHER;
        if is_ethernet && patterns.iter().any(|pattern| pattern.matches(&name)) {
            devices.push(Device { index, name });
        }
    })?;
    devices.sort();
    Ok(devices)
}

/// The name of every device, by its index.
pub(super) fn names() -> io::Result<BTreeMap<u32, String>> {
    let mut all = BTreeMap::new();
    each(|_, index, name| drop(all.insert(index, name)))?;
    Ok(all)
}

/// Calls `see` with the hardware type (`ARPHRD_*`), index and name of every device.
fn each(mut see: impl FnMut(u16, u32, String)) -> io::Result<()> {
    let request = netlink::request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &Message::zeroed());
    Netlink::open(None)?.ask(&request, |kind, body| {
        let attributes = body.get(size_of::<Message>()..).unwrap_or_default();
        if kind == libc::RTM_NEWLINK
            && let Some(Message { hardware, index, .. }) = head(body)
            && let Some(name) = attribute(attributes, libc::IFLA_IFNAME)
        {
            see(hardware, index, text(name));
        }
    })
}

/// The current name of a device; `None` if it does not exist.
#[must_use]
pub fn name(index: u32) -> Option<String> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(&socket, index).ok()
}

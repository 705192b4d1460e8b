//! Lists the existing devices.

use std::io;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::if_indextoname;

use super::Pattern;

/// A network device of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The kernel's index; another device may get it after this one is gone.
    pub index: u32,
    /// The name in `ip link`.
    pub name: String,
}

/// The devices that match a pattern. Only Ethernet: the programs read an Ethernet header.
///
/// # Errors
/// The kernel does not list them.
pub fn chosen(patterns: &[Pattern]) -> io::Result<Vec<Device>> {
    let devices = getifaddrs()?.filter_map(|entry| {
        let address = entry.address?;
        let hardware = address.as_link_addr()?;
        let name = entry.interface_name.escape_debug().to_string();
        let is_ethernet = hardware.hatype() == libc::ARPHRD_ETHER;
        let is_chosen = is_ethernet && patterns.iter().any(|pattern| pattern.matches(&name));
        is_chosen.then(|| Device { index: hardware.ifindex() as u32, name })
    });
    let mut devices: Vec<Device> = devices.collect();
    devices.sort();
    Ok(devices)
}

/// The current name of a device; `None` if it does not exist.
#[must_use]
pub fn name(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}

//! Lists the existing devices.

use std::io;

use nix::net::if_::if_indextoname;

use super::Pattern;
use super::link::links;

/// A network device of this network namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The kernel's index; another device may get it after this one is gone.
    pub index: u32,
    /// The name in `ip link`.
    pub name: String,
}

impl Device {
    /// Whether it still exists, by this name.
    #[must_use]
    pub fn is_there(&self) -> bool {
        name(self.index).is_some_and(|name| name == self.name)
    }
}

/// The devices that match a pattern. Only Ethernet: the programs read an Ethernet header.
///
/// # Errors
/// The kernel does not list them.
pub fn chosen(patterns: &[Pattern]) -> io::Result<Vec<Device>> {
    let ethernet = links()?.into_iter().filter(|link| link.is_ethernet).map(|link| link.device);
    let matches = |device: &Device| patterns.iter().any(|pattern| pattern.matches(&device.name));
    Ok(ethernet.filter(matches).collect())
}

/// The current name of a device; `None` if it does not exist.
#[must_use]
pub fn name(index: u32) -> Option<String> {
    if_indextoname(index).ok()?.into_string().ok()
}

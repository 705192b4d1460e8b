//! `snat`: the address and the ports that the programs give connections from outside to endpoints of
//! other nodes as their source, where one device leads to both.

/// Value of `snat`, of which there is one. Only the agent writes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Snat {
    /// This node's IPv6 address. Network order; zero: none yet. It stays while replies may come to it.
    pub address6: [u8; 16],
    /// The same for IPv4.
    pub address4: [u8; 4],
    /// Interface index of the device with this IPv4 address; zero: new connections do not get it, and
    /// the kernel masquerades them.
    pub device4: u32,
    /// The same for IPv6.
    pub device6: u32,
    /// Zero.
    pub reserved: u32,
}

/// The first source port: above the ports of most servers, to which other packets are recognised by their
/// port alone, and of the kubelet. Below 32768 no client of the kernel has one by default
/// (`net.ipv4.ip_local_port_range`).
pub const FIRST_PORT: u16 = 12_000;
/// The last source port: that before the default range of node ports.
pub const LAST_PORT: u16 = 29_999;

/// Whether replies to a connection with an address of `snat` can have this destination port.
#[inline(always)]
#[must_use]
pub const fn is_source_port(port: u16) -> bool {
    port >= FIRST_PORT && port <= LAST_PORT
}

/// A source port, from a random number.
#[inline(always)]
#[must_use]
pub const fn source_port(random: u32) -> u16 {
    const PORTS: u32 = LAST_PORT as u32 - FIRST_PORT as u32 + 1;
    FIRST_PORT + ((random & 0xffff) * PORTS >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_port_can_come_and_no_other() {
        let mut all: Vec<u16> = (0..=u32::from(u16::MAX)).map(source_port).collect();
        all.dedup();
        assert_eq!(all, (FIRST_PORT..=LAST_PORT).collect::<Vec<_>>());
        assert!((0..=u16::MAX).filter(|&port| is_source_port(port)).eq(FIRST_PORT..=LAST_PORT));
    }
}

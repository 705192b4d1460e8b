//! `snat`: the address and the ports that the programs give connections from outside to endpoints of
//! other nodes as their source, where one device leads to both.

/// Value of `snat`, of which there is one. The agent writes it, and the programs only `declined`.
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
    /// Ethernet address of that device; zeros: none.
    pub ethernet: [u8; 6],
    /// Zero.
    pub reserved: [u8; 2],
    /// Interface index of the device by which packets go on to other nodes as they came (direct return), also where the
    /// kernel gives connections their source, as somebody has rules for what it forwards; zero: none do.
    pub direct: u32,
    /// Not zero: a program met a route on which it cannot send packets on, so the kernel has to masquerade.
    /// It stays so as long as the map is there.
    pub declined: u32,
}

/// Source ports, the first and the last. By default no client of the kernel has one of them
/// (`net.ipv4.ip_local_port_range` is 32768 to 60999), no node port is there, and no connection of the
/// masquerade table (32768 to 65535). Few servers listen at them: a packet to another port is no reply.
pub const PORTS: (u16, u16) = (12_000, 29_999);

const COUNT: u16 = PORTS.1 - PORTS.0 + 1;

/// A client with so many open connections gets no source port for another one: it may have all of them at one
/// endpoint, and an eighth of the ports is left to others there. Few proxies in front have as many through one node.
pub const MOST_OF_CLIENT: u32 = COUNT as u32 / 8 * 7;

/// Whether replies to a connection with an address of `snat` can have this destination port.
#[inline(always)]
#[must_use]
pub const fn is_source_port(port: u16) -> bool {
    port.wrapping_sub(PORTS.0) < COUNT
}

/// A source port, from a random number.
#[inline(always)]
#[must_use]
pub const fn source_port(random: u32) -> u16 {
    PORTS.0 + (((random & 0xffff) * COUNT as u32) >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_port_can_come_and_no_other() {
        let mut all: Vec<u16> = (0..=u32::from(u16::MAX)).map(source_port).collect();
        all.dedup();
        let wanted: Vec<u16> = (PORTS.0..=PORTS.1).collect();
        assert_eq!(all, wanted);
        assert!((0..=u16::MAX).filter(|&port| is_source_port(port)).eq(wanted));
    }
}

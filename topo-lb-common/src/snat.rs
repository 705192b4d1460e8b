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

/// Source ports, as the first and the last of each range. By default no client of the kernel has one of them
/// (`net.ipv4.ip_local_port_range` is 32768 to 60999), and no node port is there. Few servers listen at them:
/// a packet to another port is no reply.
pub const PORTS: [(u16, u16); 2] = [(12_000, 29_999), (61_000, 65_535)];

const LOW: u16 = PORTS[0].1 - PORTS[0].0 + 1;
const HIGH: u16 = PORTS[1].1 - PORTS[1].0 + 1;

/// Whether replies to a connection with an address of `snat` can have this destination port.
#[inline(always)]
#[must_use]
pub const fn is_source_port(port: u16) -> bool {
    port.wrapping_sub(PORTS[0].0) < LOW || port >= PORTS[1].0
}

/// A source port, from a random number.
#[inline(always)]
#[must_use]
pub const fn source_port(random: u32) -> u16 {
    let place = (((random & 0xffff) * (LOW + HIGH) as u32) >> 16) as u16;
    if place < LOW { PORTS[0].0 + place } else { PORTS[1].0 + (place - LOW) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_port_can_come_and_no_other() {
        let mut all: Vec<u16> = (0..=u32::from(u16::MAX)).map(source_port).collect();
        all.dedup();
        let wanted: Vec<u16> = PORTS.into_iter().flat_map(|(first, last)| first..=last).collect();
        assert_eq!(all, wanted);
        assert!((0..=u16::MAX).filter(|&port| is_source_port(port)).eq(wanted));
    }
}

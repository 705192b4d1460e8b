//! `hops4`, `hops6`, `peers` and `probes`: direct return. A packet of a client outside to a load balancer or external IP, whose
//! endpoint is on another node, is sent on to that node **unchanged but for its Ethernet addresses and its hop limit**.
//! That node translates it to one of its own endpoints, and answers the client itself.
//!
//! A packet makes one such hop at most: a frame from an address in `peers` has made it.

use crate::layout::layout;

/// Key of `peers`: another node, on the network of the uplink.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Peer {
    /// The address of its frames.
    pub ethernet: [u8; 6],
    /// 4 or 6: the version of IP, as a network may carry strange addresses of one and not of the other.
    pub version: u8,
    /// Zero.
    pub reserved: u8,
}

/// Value of `peers`: the node's tag ([`node_tag`](crate::members::node_tag)) in the lower half; and this bit if packets
/// may be sent on to it, because a probe has shown that it gets them, that it knows them for such, and that the network
/// carries its answers.
pub const PROVED: u32 = 1 << 31;

layout! {
    /// Value of `hops4` and `hops6`, whose key is that of a client's packet: where packets of a flow are sent on to.
    /// So an open connection stays where it is, whatever the table of its Service says by now.
    #[repr(C, align(4))]
    pub struct Hop<A> as Hop4<[u8; 4]>, Hop6<[u8; 16]> {
        /// The endpoint that this node has chosen, network order.
        pub address: A,
        /// Its port, host order.
        pub port: u16,
        /// Its [`Locality`](crate::backend::Locality).
        pub locality: u8,
        /// Zero.
        pub reserved: u8,
        /// Index of the Service port.
        pub service: u32,
        /// Time of the last packet, in units of [`TICK`](crate::connection::TICK).
        pub last_used: u32,
    }
}

/// The UDP port of probes between agents, of the sender and of the receiver. Registered for nobody.
pub const PROBE_PORT: u16 = 19_877;
/// The hop limit of probes: no kernel forwards them.
pub const PROBE_HOPS: u8 = 1;
/// One end of each probe, in place of a client outside: an address of documentation (RFC 5737), which no host has.
/// Network order.
pub const PROBE_CLIENT4: [u8; 4] = [192, 0, 2, 1];
/// The same of IPv6 (RFC 3849).
pub const PROBE_CLIENT6: [u8; 16] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
/// The first bytes behind its UDP header.
pub const PROBE_MAGIC: [u8; 8] = *b"topo-lb\0";
/// Bytes of a probe behind its UDP header.
pub const PROBE_BYTES: usize = 280;
/// Most bytes of a probe's frame: Ethernet, IPv6, UDP.
pub const PROBE_FRAME: usize = 14 + 40 + 8 + PROBE_BYTES;

/// An element of the ring buffer `probes`: a frame that tc has received, and that may be another agent's.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Probe {
    /// Interface index of the device.
    pub device: u32,
    /// Bytes of the frame.
    pub length: u16,
    /// The frame; what is behind `length` is anything.
    pub frame: [u8; PROBE_FRAME],
}

/// The size of `probes` in bytes: room for 180 frames. What comes while it is full is lost, and asked again.
pub const PROBES: u32 = 1 << 16;

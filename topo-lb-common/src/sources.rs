//! `sources4` and `sources6`: who may dial a load balancer's address (`loadBalancerSourceRanges`).
//!
//! Longest-prefix tries. A frontend without ranges has no entry, and everybody may dial it. One with
//! ranges has an entry of prefix [`FRONTEND_BITS4`] or [`FRONTEND_BITS6`] that denies, and one for each range that allows.

use crate::layout::layout;

/// Prefix length of the entry for all sources of an IPv4 frontend, in bits: its address, port and
/// protocol.
pub const FRONTEND_BITS4: u32 = 64;
/// The same for IPv6.
pub const FRONTEND_BITS6: u32 = 160;

/// Value: the source is denied; the packet is dropped.
pub const DENIED: u32 = 0;
/// Value: the source is allowed.
pub const ALLOWED: u32 = 1;

layout! {
    /// A client of a frontend: key of `sources4` and `sources6`, behind the prefix length.
    #[repr(C, align(4))]
    pub struct Source<A> as Source4<[u8; 4]>, Source6<[u8; 16]> {
        /// The frontend's address, network order.
        pub address: A,
        /// The frontend's port, host order.
        pub port: u16,
        /// The frontend's protocol, without [`OUTSIDE`](crate::address::OUTSIDE).
        pub protocol: u8,
        /// Zero.
        pub reserved: u8,
        /// The client's address, or the network of a range; network order.
        pub client: A,
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Source4, client) as u32 == FRONTEND_BITS4 / 8);
    assert!(offset_of!(Source6, client) as u32 == FRONTEND_BITS6 / 8);
};

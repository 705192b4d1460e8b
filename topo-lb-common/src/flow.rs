//! Unconnected UDP: a socket may send to many Services, so one storage per socket is not enough.
//!
//! `flows*` holds the endpoint of a socket and a frontend; `replies*` gives the frontend for a
//! socket and an endpoint. Both are LRU: an idle entry may be evicted, and the next datagram then
//! chooses again.

use crate::address::{Frontend4, Frontend6};
use crate::backend::{Backend4, Backend6};
use crate::layout::layout;

layout! {
    /// Value of `flows4` and `flows6`.
    #[repr(C)]
    pub struct Flow<B> as Flow4<Backend4>, Flow6<Backend6> {
        /// The endpoint that gets the datagrams.
        pub endpoint: B,
        /// Index of the Service port when the endpoint was chosen.
        pub service: u32,
        /// The Service's generation when the endpoint was last found to serve.
        pub generation: u32,
    }
}

/// Key of `flows4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct FlowKey4 {
    /// The kernel's socket cookie.
    pub cookie: u64,
    /// The frontend that the socket sends to.
    pub frontend: Frontend4,
}

/// Key of `replies4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct ReplyKey4 {
    /// The kernel's socket cookie.
    pub cookie: u64,
    /// The endpoint's address, network order.
    pub address: [u8; 4],
    /// The endpoint's port, host order.
    pub port: u16,
    /// Zero.
    pub reserved: u16,
}

/// Key of `flows6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct FlowKey6 {
    /// The kernel's socket cookie.
    pub cookie: u64,
    /// The frontend that the socket sends to.
    pub frontend: Frontend6,
    /// Zero.
    pub reserved: u32,
}

/// Key of `replies6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct ReplyKey6 {
    /// The kernel's socket cookie.
    pub cookie: u64,
    /// The endpoint's address, network order.
    pub address: [u8; 16],
    /// The endpoint's port, host order.
    pub port: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

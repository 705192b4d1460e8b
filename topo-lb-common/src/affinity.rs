//! `affinity4/6` and `clients4/6`: session affinity of a client to an endpoint.
//!
//! At connect time there is no source address yet, so in `affinity4/6` a client is a network namespace,
//! which is one Pod. `clients4/6` are tc's: there a client is an address, and has an entry once a
//! connection of its is established, so packets with a false source write none. An entry counts only while
//! its endpoint is in the Service's chosen set.

use crate::backend::{Backend4, Backend6};

/// Key of all.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct AffinityKey {
    /// The client: for sockets, `bpf_get_netns_cookie`; for tc, a number that is computed from
    /// the source address, with the highest bit set or the second one.
    pub netns_cookie: u64,
    /// Index of the Service port.
    pub service: u32,
    /// Zero.
    pub reserved: u32,
}

/// Value of `affinity4` and `clients4`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Affinity4 {
    /// The kernel's tick (`CLOCK_MONOTONIC`, nanoseconds) at the last new connection.
    pub last_used: u64,
    /// The endpoint of the client's connections.
    pub endpoint: Backend4,
}

/// Value of `affinity6` and `clients6`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Affinity6 {
    /// The kernel's tick (`CLOCK_MONOTONIC`, nanoseconds) at the last new connection.
    pub last_used: u64,
    /// The endpoint of the client's connections.
    pub endpoint: Backend6,
    /// Zero.
    pub reserved: u32,
}

//! `affinity4/6` and `clients4/6`: session affinity of a client to an endpoint.
//!
//! At connect time there is no source address yet, so in `affinity4/6` a client is a network namespace,
//! which is one Pod. `clients4/6` are tc's: there a client is an address, and has an entry once a
//! connection of its is established, or its datagram answered. Few numbers stand for all who send datagrams,
//! and for the hosts of a /64, so that neither false sources nor one host's many addresses evict the entries
//! of others. An entry counts only while its endpoint is in the Service's chosen set.

use crate::backend::{Backend4, Backend6};

/// Key of all.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct AffinityKey {
    /// The client: for sockets, `bpf_get_netns_cookie`; for tc, [`client6`] or the IPv4 source address, of
    /// datagrams [`of_datagrams`] it, with the highest bit set or the second one.
    pub netns_cookie: u64,
    /// Index of the Service port.
    pub service: u32,
    /// Zero.
    pub reserved: u32,
}

/// Numbers of the clients of a /64, which one host may have for itself. Hosts that share a number share an
/// endpoint.
pub const CLIENTS_OF_NETWORK: u64 = 1 << 10;
/// Numbers of all clients that send datagrams to a Service port: nothing proves their source.
pub const CLIENTS_OF_DATAGRAMS: u64 = 1 << 12;

/// 2^64 by the golden ratio: neighbours times this differ in the highest bits (Fibonacci hashing).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The number of an IPv6 client in less than 2^62, by the halves of its address.
#[inline(always)]
#[must_use]
pub const fn client6(network: u64, host: u64) -> u64 {
    let host = host.wrapping_mul(GOLDEN) >> (64 - CLIENTS_OF_NETWORK.trailing_zeros());
    (network.wrapping_mul(GOLDEN) >> 2) & !(CLIENTS_OF_NETWORK - 1) | host
}

/// The number of a client that sends datagrams.
#[inline(always)]
#[must_use]
pub const fn of_datagrams(client: u64) -> u64 {
    client.wrapping_mul(GOLDEN) >> (64 - CLIENTS_OF_DATAGRAMS.trailing_zeros())
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn one_network_has_few_numbers_and_networks_have_different_ones() {
        let hosts: HashSet<u64> =
            (0..100_000).map(|host: u64| client6(7, host.swap_bytes())).collect();
        assert_eq!(hosts.len() as u64, CLIENTS_OF_NETWORK);
        let networks: HashSet<u64> =
            (0..100_000).map(|network: u64| client6(network.swap_bytes(), 1)).collect();
        assert_eq!(networks.len(), 100_000);
        assert!(networks.iter().chain(&hosts).all(|client| client >> 62 == 0));
    }

    #[test]
    fn datagrams_spread_over_all_their_numbers() {
        let inside: HashSet<u64> = (0..100_000_u32)
            .map(|host| of_datagrams((0x0a00_0000 + host).swap_bytes().into()))
            .collect();
        assert_eq!(inside.len() as u64, CLIENTS_OF_DATAGRAMS);
    }
}

//! A frontend and what its connections are to do, as the kernel is to see it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::cluster::Protocol;
use crate::topology::Chosen;

/// An address family: each has maps of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// What a client dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// A ClusterIP.
    pub address: IpAddr,
    /// The Service port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

impl Frontend {
    /// The family whose maps hold it.
    pub const fn family(&self) -> Family {
        Family::of(self.address)
    }
}

impl std::fmt::Display for Frontend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let socket = SocketAddr::new(self.address, self.port);
        write!(f, "{socket}/{}", self.protocol.name())
    }
}

/// What a frontend's connections do. Equal entries need no write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The Service port's index.
    pub index: u32,
    /// Index of the matching topology key.
    pub tier: Option<u8>,
    /// Endpoints of the chosen tier come first in [`row`](Self::row): this many. None refuses.
    pub count: u16,
    /// Share of connections for the rest of the row, in parts of `selection::SPILL_ONE`.
    pub spill: u32,
    /// Session affinity in seconds, zero for none.
    pub affinity_seconds: u32,
    /// The endpoints: the chosen tier's, then the wider tier's.
    pub row: Arc<[Chosen]>,
}

impl Entry {
    /// Whether the row is too long for the service value itself.
    pub fn needs_slots(&self) -> bool {
        self.row.len() > topo_lb_common::selection::INLINE
    }
}

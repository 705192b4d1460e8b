//! What happens to connections, and an endpoint that they may go to.

use std::net::{IpAddr, SocketAddr};

use topo_lb_common::backend::Locality;

/// What happens to a client's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum Verdict {
    /// Connections go to the chosen endpoints.
    Route,
    /// Connections are refused.
    Refuse,
    /// topo-lb does not translate them.
    Bypass,
}

/// One endpoint that this node may use, in 20 bytes to save memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chosen {
    ip: IpAddr,
    port: u16,
    /// Its distance from this node.
    pub locality: Locality,
}

impl Chosen {
    /// The endpoint that listens at `address`.
    #[must_use]
    pub const fn new(address: SocketAddr, locality: Locality) -> Self {
        Self { ip: address.ip(), port: address.port(), locality }
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }
}

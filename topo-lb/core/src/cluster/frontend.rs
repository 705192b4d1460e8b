//! What a client dials, and the address families.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::protocol::Protocol;

/// An address family; each has its own maps.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::IntoStaticStr,
)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "IPv4")]
    #[strum(serialize = "IPv4")]
    V4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    #[strum(serialize = "IPv6")]
    V6,
}

impl Family {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    #[must_use]
    pub const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// What kind of address a frontend has, in the order of their claims: of two Services that claim one
/// frontend, the one with the lower kind gets it. So an external IP never takes the ClusterIP of another
/// Service (CVE-2020-8554).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::IntoStaticStr,
)]
pub enum FrontendKind {
    /// `spec.clusterIPs`.
    #[strum(serialize = "ClusterIP")]
    ClusterIp,
    /// `status.loadBalancer.ingress`.
    #[strum(serialize = "load balancer IP")]
    LoadBalancerIp,
    /// `spec.externalIPs`.
    #[strum(serialize = "external IP")]
    ExternalIp,
    /// An address of this node, and `spec.ports[].nodePort`.
    #[strum(serialize = "node port")]
    NodePort,
    /// An endpoint, for clients that dial it directly (`topo-lb.io/direct`). Last: an address that is any
    /// Service's own never becomes one.
    #[strum(serialize = "endpoint")]
    Endpoint,
}

/// Who dials a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Clients {
    /// Everybody for whom there is no entry of [`Clients::Outside`].
    Anywhere,
    /// Clients outside of this node, where they get other endpoints than its own clients.
    Outside,
    /// Steered Pods of this node: they get another endpoint in place of the one that they dial.
    Steered,
    /// Other nodes, which send packets of their clients outside on: they get endpoints of this node.
    Peers,
}

impl Clients {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Anywhere, Self::Outside, Self::Steered, Self::Peers];
}

/// What a client dials. `Display` gives `10.96.0.1:80/TCP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// A ClusterIP, a load balancer IP, an external IP, an address of this node, or an endpoint's.
    pub address: IpAddr,
    /// The Service port, its node port, or an endpoint's port, 1–65535.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// Who dials it.
    pub clients: Clients,
}

impl Frontend {
    /// The frontend of these parts, for clients anywhere.
    #[must_use]
    pub const fn new(address: IpAddr, port: u16, protocol: Protocol) -> Self {
        Self { address, port, protocol, clients: Clients::Anywhere }
    }

    /// The same frontend for these clients.
    #[must_use]
    pub const fn of(self, clients: Clients) -> Self {
        Self { clients, ..self }
    }

    /// The family of the maps that hold it.
    #[must_use]
    pub const fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// `10.96.0.1 TCP 80`, or `node port TCP 30080`, as `explain` and `lint` write it.
    #[must_use]
    pub fn in_words(&self, kind: FrontendKind) -> String {
        match kind {
            FrontendKind::NodePort => format!("{kind} {} {}", self.protocol, self.port),
            _ => format!("{} {} {}", self.address, self.protocol, self.port),
        }
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = SocketAddr::new(self.address, self.port);
        write!(f, "{socket}/{}", self.protocol)?;
        match self.clients {
            Clients::Anywhere => Ok(()),
            Clients::Outside => f.write_str(" from outside"),
            Clients::Steered => f.write_str(" from steered Pods"),
            Clients::Peers => f.write_str(" from other nodes"),
        }
    }
}

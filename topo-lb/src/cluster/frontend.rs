//! What a client dials, and the address families.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use super::Protocol;

/// An address family; each has its own maps.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display, strum::IntoStaticStr,
)]
pub enum Family {
    /// IPv4.
    #[strum(serialize = "IPv4")]
    V4,
    /// IPv6.
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

/// What a client dials. `Display` gives `10.96.0.1:80/TCP`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// A ClusterIP.
    pub address: IpAddr,
    /// The Service port, 1–65535.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
}

impl Frontend {
    /// The family of the maps that hold it.
    #[must_use]
    pub const fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// `10.96.0.1 TCP 80`, as `explain` and `lint` write it.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!("{} {} {}", self.address, self.protocol, self.port)
    }
}

impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let socket = SocketAddr::new(self.address, self.port);
        write!(f, "{socket}/{}", self.protocol)
    }
}

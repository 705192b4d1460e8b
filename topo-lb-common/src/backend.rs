//! A backend: an endpoint, and its distance from this node.

/// Distance of an endpoint from this node.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Locality {
    /// On this node.
    Node = 0,
    /// In this node's `topology.kubernetes.io/zone`.
    Zone = 1,
    /// In this node's `topology.kubernetes.io/region`.
    Region = 2,
    /// Anywhere else, or unknown.
    Elsewhere = 3,
}

impl Locality {
    /// From nearest to farthest.
    pub const ALL: [Self; 4] = [Self::Node, Self::Zone, Self::Region, Self::Elsewhere];

    /// The locality of a stored byte; a byte out of range means elsewhere.
    #[inline(always)]
    pub const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Node,
            1 => Self::Zone,
            2 => Self::Region,
            _ => Self::Elsewhere,
        }
    }

    /// The name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Node => "node",
            Self::Zone => "zone",
            Self::Region => "region",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// An IPv4 endpoint; eight bytes, so that one aligned load reads it.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Backend4 {
    /// Network order.
    pub address: [u8; 4],
    /// Host order, 1–65535.
    pub port: u16,
    /// A [`Locality`].
    pub locality: u8,
    /// Zero.
    pub reserved: u8,
}

/// An IPv6 endpoint.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Backend6 {
    /// Network order.
    pub address: [u8; 16],
    /// Host order, 1–65535.
    pub port: u16,
    /// A [`Locality`].
    pub locality: u8,
    /// Zero.
    pub reserved: u8,
}

//! `counters`: connections of a Service port by locality, per CPU.

use crate::backend::Locality;

/// Value of `counters`, indexed by Service index. A connection is counted when it gets an endpoint:
/// at `connect`, or with the first datagram of an unconnected UDP flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Counters {
    /// To an endpoint on this node.
    pub same_node: u64,
    /// To another node of this zone.
    pub same_zone: u64,
    /// To another zone of this region.
    pub same_region: u64,
    /// To anywhere else.
    pub elsewhere: u64,
    /// Refused.
    pub refused: u64,
}

impl Counters {
    /// Adds the counts of another Service port or CPU.
    pub const fn add(&mut self, other: &Self) {
        let Self { same_node, same_zone, same_region, elsewhere, refused } = other;
        self.same_node += *same_node;
        self.same_zone += *same_zone;
        self.same_region += *same_region;
        self.elsewhere += *elsewhere;
        self.refused += *refused;
    }

    /// The counter of one locality.
    #[inline(always)]
    pub const fn at(&mut self, locality: Locality) -> &mut u64 {
        match locality {
            Locality::Node => &mut self.same_node,
            Locality::Zone => &mut self.same_zone,
            Locality::Region => &mut self.same_region,
            Locality::Elsewhere => &mut self.elsewhere,
        }
    }
}

/// Bytes of a name in `names`: namespace (63) `/` name (63) `:` port (63), and a final zero. Each
/// is a DNS label (RFC 1123), also the port's name.
pub const NAME_LENGTH: usize = 192;

/// Value of `names`: `namespace/name:port`, zero-padded UTF-8.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Name {
    /// The text.
    pub text: [u8; NAME_LENGTH],
}

//! `counters`: connections of a Service port by locality.

use crate::backend::Locality;

/// Value of `counters`. Its index is `cpu × n + service`: the number of the CPU, the number of
/// Service ports for which there is room (`--max-services`), and the index of the Service port. The
/// programs add to it atomically, and the agent reads it through a mapping.
///
/// A connection is counted when it gets an endpoint: at `connect`, or with the first datagram of an
/// unconnected UDP flow.
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

/// The sum of the counts of several CPUs, or of several Service ports. `V` consists of `u64`s.
#[cfg(feature = "user")]
pub fn sum<'a, V: bytemuck::Pod>(all: impl IntoIterator<Item = &'a V>) -> V {
    let mut sum = V::zeroed();
    for one in all {
        let words = bytemuck::cast_slice_mut::<V, u64>(core::slice::from_mut(&mut sum));
        let more = bytemuck::cast_slice::<V, u64>(core::slice::from_ref(one));
        words.iter_mut().zip(more).for_each(|(sum, one)| *sum += one);
    }
    sum
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

//! `far_endpoints`: what TCP connections moved to each endpoint outside of this node's zone. The agent
//! knows the zone of an address, and sums by it.
//!
//! The programs add atomically when a connection ends, and in the walk over open ones.

/// Most entries; each takes memory only while it exists. Without room for an entry, the programs add to
/// the one of [`FarEndpoint::OTHERS`].
pub const MOST_FAR_ENDPOINTS: u32 = 65_536;

/// Key of `far_endpoints`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct FarEndpoint {
    /// Network order; an IPv4 address as an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2).
    pub address: [u8; 16],
}

impl FarEndpoint {
    /// All endpoints for which there is no room.
    pub const OTHERS: Self = Self { address: [0; 16] };
}

/// Value of `far_endpoints`, in bytes. Both only grow while the entry exists.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Moved {
    /// As [`Totals::sent`](crate::totals::Totals::sent).
    pub sent: u64,
    /// As [`Totals::received`](crate::totals::Totals::received).
    pub received: u64,
}

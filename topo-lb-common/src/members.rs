//! `members4` and `members6`: whether an endpoint still belongs to a Service.
//!
//! Programs check here whether a socket or client may keep its endpoint after a change. The maps
//! have the endpoints of UDP Services and of Services with session affinity; with tc or
//! `--terminate-tcp`, of all Services. Those of TCP Services with ejection are there, too: programs count
//! in them how many connects in a row have failed.

use crate::layout::layout;

/// [`Member::state`]: new connections of this node may use the endpoint. Without it, the endpoint
/// serves but the topology prefers others: only existing flows keep it.
pub const CHOSEN: u32 = 1;

/// [`Member::state`]: programs add this for a connect that has failed. The agent writes zero in its place.
pub const ONE_FAILURE: u32 = 1 << 16;

layout! {
    /// Key of both: an endpoint of a Service port.
    #[repr(C)]
    pub struct MemberKey<A> as MemberKey4<[u8; 4]>, MemberKey6<[u8; 16]> {
        /// Index of the Service port.
        pub service: u32,
        /// Network order.
        pub address: A,
        /// Host order.
        pub port: u16,
        /// Zero.
        pub reserved: u16,
    }
}

/// Value of both: an endpoint that serves.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Member {
    /// [`CHOSEN`] or zero; from [`ONE_FAILURE`] on, how many connects in a row have failed.
    pub state: u32,
}

impl Member {
    /// How many connects in a row have failed.
    #[inline(always)]
    pub const fn failed_in_a_row(state: u32) -> u16 {
        (state / ONE_FAILURE) as u16
    }
}

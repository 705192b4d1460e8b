//! `members4` and `members6`: whether an endpoint still belongs to a Service.
//!
//! Programs check here whether a socket or client may keep its endpoint after a change. The maps
//! have the endpoints of UDP Services and of Services with session affinity; with tc or
//! `--terminate-tcp`, of all Services.

use crate::layout::layout;

/// [`Member::state`]: new connections of this node may use the endpoint. Without it, the endpoint
/// serves but the topology prefers others: only existing flows keep it.
pub const CHOSEN: u32 = 1;

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
    /// [`CHOSEN`] or zero.
    pub state: u32,
}

//! `connected4` and `connected6`: what a connected socket dialled, in the socket's own storage,
//! which the kernel frees with the socket.
//!
//! It is valid only while the socket's peer is [`endpoint`](Connected::endpoint). A socket that was
//! connected to another address since then does not match, and stays untouched.

use crate::address::{Frontend4, Frontend6};
use crate::backend::{Backend4, Backend6};
use crate::layout::layout;

/// What `totals` already has of a TCP connection that is still open. Grows only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Seen {
    /// Bytes, as [`Totals::sent`](crate::totals::Totals::sent).
    pub sent: u64,
    /// Bytes, as [`Totals::received`](crate::totals::Totals::received).
    pub received: u64,
    /// Segments, as [`Totals::retransmitted`](crate::totals::Totals::retransmitted).
    pub retransmitted: u64,
}

layout! {
    /// Value of both.
    #[repr(C)]
    pub struct Connected<F, B> as Connected4<Frontend4, Backend4>, Connected6<Frontend6, Backend6> {
        /// The frontend that the application dialled.
        pub frontend: F,
        /// The endpoint that the connection went to.
        pub endpoint: B,
        /// Index of the Service port.
        pub service: u32,
        /// The tier in force, as in [`Record`](crate::record::Record).
        pub tier: u8,
        /// How many failures in a row the agent hears of; zero for none, and once TCP is established.
        pub failures: u8,
        /// Zero.
        pub reserved: [u8; 2],
        /// What is already counted.
        pub seen: Seen,
    }
}

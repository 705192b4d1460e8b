//! `flows4` and `flows6`: the flows of an unconnected UDP socket, in the socket's own storage, which
//! the kernel frees with the socket. No other socket can evict them.
//!
//! The programs read and write them under the socket's lock: the kernel holds it around the hooks of
//! `sendmsg` and `recvmsg` (`BPF_CGROUP_RUN_SA_PROG_LOCK`, include/linux/bpf-cgroup.h). `topo-lb
//! list` reads without the lock, and may see a flow half written.

use crate::address::{Frontend4, Frontend6};
use crate::backend::{Backend4, Backend6};
use crate::layout::layout;

/// Most flows of a socket and an address family. A further one replaces the one that is unused for
/// longest.
pub const FLOWS: usize = 4;

layout! {
    /// A frontend that the socket sends to, and the endpoint that gets the datagrams. All zero:
    /// unused, and equal to no frontend and no sender of a datagram.
    #[repr(C)]
    pub struct Flow<F, B> as Flow4<Frontend4, Backend4>, Flow6<Frontend6, Backend6> {
        /// The endpoint that gets the datagrams.
        pub endpoint: B,
        /// The frontend that the socket sends to.
        pub frontend: F,
        /// The `revision` of the maps when the endpoint was last found to serve.
        pub revision: u32,
        /// [`Flows::turn`] when the socket last sent to the frontend.
        pub turn: u32,
    }
}

layout! {
    /// Value of `flows4` and `flows6`.
    #[repr(C)]
    pub struct Flows<T> as Flows4<Flow4>, Flows6<Flow6> {
        /// In no order. If the socket left an endpoint, the flow to it may stay beside the current
        /// one of that frontend, for late replies.
        pub flows: [T; FLOWS],
        /// How often the socket has turned to another flow; wraps.
        pub turn: u32,
        /// Zero.
        pub reserved: u32,
    }
}

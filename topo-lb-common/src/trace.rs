//! `trace` and `trace_lost`: what was decided about new connections, told to `topo-lb trace`.
//!
//! `trace` is an array of one map. It is empty, except while somebody traces: then it has a ring buffer,
//! into which programs write a [`Decision`] each.

/// Bytes of a thread's name (`TASK_COMM_LEN`, include/linux/sched.h).
pub const THREAD_LENGTH: usize = 16;

/// Bytes of a ring buffer that the object declares. A tracer may take another size.
pub const RING_BYTES: u32 = 256 * 1_024;

/// [`Decision::service`] if it is not known: each look-up found the record of another frontend.
pub const NO_SERVICE: u32 = u32::MAX;

/// An IPv4 address is in the first four bytes.
pub type Address = [u8; 16];

/// Defines an enum of bytes, and how to read one.
macro_rules! bytes {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant = $number,)*
        }

        impl $name {
            /// By its number.
            #[must_use]
            pub const fn from_byte(byte: u8) -> Option<Self> {
                match byte {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

bytes! {
    /// What becomes of a new connection.
    Outcome {
        /// It goes to an endpoint.
        Routed = 0,
        /// No endpoint may be used, and the client is told.
        Refused = 1,
        /// No endpoint may be used, and the client gets no answer; or its address is not allowed, or no
        /// source port is free.
        Dropped = 2,
        /// The device, or the client outside of this node, has too many open connections.
        Limited = 3,
        /// It cannot be translated: kube-proxy decides.
        Bypassed = 4,
        /// The table of connections is full of open ones.
        TableFull = 5,
    }
}

bytes! {
    /// Where it was decided.
    Hook {
        /// `connect` of a socket.
        Connect = 0,
        /// `sendto` or `sendmsg` of an unconnected UDP socket that has no endpoint yet.
        Send = 1,
        /// A packet of a guest of this node.
        Guest = 2,
        /// A packet of a client outside of this node.
        Outside = 3,
    }
}

/// A decision: an element of the ring buffer. Addresses are in network order, all numbers in host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Decision {
    /// `CLOCK_MONOTONIC`, in nanoseconds.
    pub time: u64,
    /// The id of the process's cgroup; zero without a process.
    pub cgroup: u64,
    /// What was dialled.
    pub frontend: Address,
    /// The endpoint; zero unless routed.
    pub endpoint: Address,
    /// Who dialled; zero with a process: its socket has no address yet.
    pub client: Address,
    /// The name of the thread; zero without a process.
    pub thread: [u8; THREAD_LENGTH],
    /// Index of the Service port, or [`NO_SERVICE`].
    pub service: u32,
    /// The number of the process in the first pid namespace; zero without a process.
    pub process: u32,
    /// The interface index of the device that received the packet; zero with a process.
    pub device: u32,
    /// Of `frontend`.
    pub frontend_port: u16,
    /// Of `endpoint`.
    pub endpoint_port: u16,
    /// Of `client`.
    pub client_port: u16,
    /// TCP, UDP or SCTP.
    pub protocol: u8,
    /// Whether the addresses are IPv6.
    pub is_v6: u8,
    /// A [`Hook`].
    pub hook: u8,
    /// An [`Outcome`].
    pub outcome: u8,
    /// The tier in force, as in [`Record`](crate::record::Record).
    pub tier: u8,
    /// A [`Locality`](crate::backend::Locality) of the endpoint.
    pub locality: u8,
}

const _: () = assert!(size_of::<Decision>() == 104);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_of_no_meaning_is_none() {
        for byte in 0..=255 {
            assert_eq!(Outcome::from_byte(byte).map(|it| it as u8), (byte < 6).then_some(byte));
            assert_eq!(Hook::from_byte(byte).map(|it| it as u8), (byte < 4).then_some(byte));
        }
    }
}

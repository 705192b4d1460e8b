//! `ended`: a ring buffer in which programs tell the agent which TCP connections ended that topo-lb did not
//! translate (`--count all`): those that another proxy translates, and those that dial a Pod or anything else by
//! its address.

/// Bytes of the ring buffer: a power of two, and a multiple of the largest page (64 KiB). With its header an element
/// takes 72 bytes.
pub const RING_BYTES: u32 = 256 * 1_024;

/// [`Ended::failure`] of a connection that was established.
pub const ESTABLISHED: u8 = u8::MAX;

/// Element of the ring buffer. Addresses are in network order, IPv4 addresses as IPv4-mapped IPv6 addresses; all
/// numbers in host order.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Ended {
    /// The socket's own address.
    pub client: [u8; 16],
    /// What it dialled.
    pub dialled: [u8; 16],
    /// As [`Totals::sent`](crate::totals::Totals::sent).
    pub sent: u64,
    /// As [`Totals::received`](crate::totals::Totals::received).
    pub received: u64,
    /// As [`Totals::retransmitted`](crate::totals::Totals::retransmitted).
    pub retransmitted: u32,
    /// The last smoothed round trip, in microseconds; zero without a sample.
    pub rtt_micros: u32,
    /// Of `client`.
    pub client_port: u16,
    /// Of `dialled`.
    pub dialled_port: u16,
    /// Why it was never established, a [`Failure`](crate::totals::Failure); or [`ESTABLISHED`].
    pub failure: u8,
    /// Zero.
    pub reserved: [u8; 3],
}

const _: () = assert!(size_of::<Ended>() == 64);

//! `totals`: what ended TCP connections of a Service port have moved, by locality and tier.
//!
//! The programs count a connection in the callbacks of its socket's state (`BPF_CGROUP_SOCK_OPS`), so
//! its packets cost nothing. They add atomically; the agent and `topo-lb list` read.

use crate::backend::Locality;
use crate::record::NO_TIER;

/// Most entries of `totals`; each takes memory only while it exists. Without room for an entry, the
/// programs add to the one with [`OTHERS`].
pub const MOST_TOTALS: u32 = 65_536;

/// [`TotalsKey::service`] of the entries for all Service ports that have no room.
pub const OTHERS: u32 = u32::MAX;

/// Upper limits of the places of [`Totals::rtt`], in microseconds: powers of two from 32 µs to 0.5 s.
/// The last place has what is longer.
pub const RTT_LIMITS: [u32; RTT_PLACES - 1] = {
    let mut limits = [0; RTT_PLACES - 1];
    let mut place = 0;
    while place < limits.len() {
        limits[place] = 1 << (place + 5);
        place += 1;
    }
    limits
};

/// Places of [`Totals::rtt`]; a power of two.
pub const RTT_PLACES: usize = 16;

/// Key of `totals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct TotalsKey {
    /// Index of the Service port, or [`OTHERS`].
    pub service: u32,
    /// A [`Locality`].
    pub locality: u8,
    /// The tier in force when the connection was made: index of the topology key, or [`NO_TIER`].
    pub tier: u8,
    /// Zero.
    pub reserved: u16,
}

impl TotalsKey {
    /// The entry for a Service port's connections to endpoints of a locality.
    #[inline(always)]
    pub const fn new(service: u32, locality: Locality, tier: u8) -> Self {
        Self { service, locality: locality as u8, tier, reserved: 0 }
    }

    /// The entry for all that has no room.
    #[inline(always)]
    pub const fn others(locality: Locality) -> Self {
        Self::new(OTHERS, locality, NO_TIER)
    }
}

/// Value of `totals`. All numbers only grow while the entry exists.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Totals {
    /// Bytes of the client's stream that were sent at least once.
    pub sent: u64,
    /// Bytes of the endpoint's stream that arrived in order.
    pub received: u64,
    /// Segments that were sent again, handshakes included.
    pub retransmitted: u64,
    /// Connections that were never established, in the order of [`Failure::ALL`].
    pub failures: [u64; 4],
    /// Sum of the round trips that `rtt` counts, in microseconds.
    pub rtt_micros: u64,
    /// Ended connections by their last smoothed round trip (`srtt_us` of `struct tcp_sock`): each place
    /// counts up to its limit in [`RTT_LIMITS`], above the one before.
    pub rtt: [u64; RTT_PLACES],
}

/// The place of a round trip in [`Totals::rtt`].
#[inline(always)]
pub const fn rtt_place(micros: u32) -> usize {
    // The number of bits of a multiple of 32 µs, rounded up; without loops, for the verifier.
    let mut rest = micros.saturating_sub(1) >> 5;
    let mut place = 0;
    if rest >= 1 << 15 {
        return RTT_PLACES - 1;
    }
    if rest >= 1 << 8 {
        rest >>= 8;
        place += 8;
    }
    if rest >= 1 << 4 {
        rest >>= 4;
        place += 4;
    }
    if rest >= 1 << 2 {
        rest >>= 2;
        place += 2;
    }
    if rest >= 1 << 1 {
        rest >>= 1;
        place += 1;
    }
    if rest >= 1 {
        place += 1;
    }
    place
}

/// Why a connection was never established.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The endpoint answered with a RST, or its host with ICMP port unreachable.
    Refused = 0,
    /// Nobody answered until the kernel gave up.
    Timeout = 1,
    /// The application gave up after the kernel had sent the SYN again.
    GivenUp = 2,
    /// The network answered that the endpoint cannot be reached.
    Unreachable = 3,
}

impl Failure {
    /// All, in the order of [`Totals::failures`].
    pub const ALL: [Self; 4] = [Self::Refused, Self::Timeout, Self::GivenUp, Self::Unreachable];

    /// The name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Timeout => "timeout",
            Self::GivenUp => "given_up",
            Self::Unreachable => "unreachable",
        }
    }

    /// Why a socket left SYN_SENT for CLOSE, by its `sk_err` (zero, or a positive number of
    /// include/uapi/asm-generic/errno.h) and the segments that it sent again. `None`: the application
    /// closed it before anything was wrong, or a tool ended it.
    #[inline(always)]
    pub const fn of(error: u32, retransmitted: u32) -> Option<Self> {
        const ECONNABORTED: u32 = 103;
        const ETIMEDOUT: u32 = 110;
        const ECONNREFUSED: u32 = 111;
        match error {
            ECONNREFUSED => Some(Self::Refused),
            ETIMEDOUT => Some(Self::Timeout),
            ECONNABORTED => None,
            0 if retransmitted == 0 => None,
            0 => Some(Self::GivenUp),
            _ => Some(Self::Unreachable),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_trip_is_in_the_first_place_whose_limit_it_does_not_exceed() {
        let first =
            |micros| RTT_LIMITS.iter().position(|limit| micros <= *limit).unwrap_or(RTT_PLACES - 1);
        let around = |micros: u32| micros.saturating_sub(2)..=micros.saturating_add(2);
        for micros in (0..32).flat_map(|bit| around(1 << bit)).chain(around(u32::MAX)) {
            assert_eq!(rtt_place(micros), first(micros), "{micros} µs");
        }
    }

    #[test]
    fn a_failure_is_told_by_the_sockets_error_and_what_it_sent_again() {
        for (error, retransmitted, failure) in [
            (111, 0, Some(Failure::Refused)),
            (110, 6, Some(Failure::Timeout)),
            (0, 1, Some(Failure::GivenUp)),
            (0, 0, None),
            (113, 3, Some(Failure::Unreachable)),
            (103, 1, None),
        ] {
            assert_eq!(Failure::of(error, retransmitted), failure, "{error} {retransmitted}");
        }
    }
}

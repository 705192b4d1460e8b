//! `connections4` and `connections6`: connections that tc translates.
//!
//! A connection has two entries, one for each direction ([`way`](Tuple::way)). The key has a
//! packet's fields before translation, the value those after it. The key of the other entry is the
//! value's four-tuple reversed. The maps are LRU: an idle connection may be evicted.
//!
//! `fragments4` and `fragments6` hold a first fragment's translation for later ones without ports.

use crate::address::TCP;
use crate::layout::layout;

/// [`Tuple::way`]: a packet from a client, on ingress.
pub const FROM_CLIENT: u8 = 0;
/// [`Tuple::way`]: a packet to a client, on egress.
pub const TO_CLIENT: u8 = 1;

/// [`Connection::kind`]: the entry for replies.
pub const REPLY: u8 = 1;
/// [`Connection::kind`]: the client is its own endpoint. Packets of both directions come from its
/// device and return there, with the Service's address as their source.
pub const HAIRPIN: u8 = 2;
/// [`Connection::kind`]: the endpoint does not belong to the Service any more.
pub const ENDPOINT_GONE: u8 = 4;

/// [`Connection::state`]: the endpoint has replied.
pub const ANSWERED: u8 = 1;
/// [`Connection::state`]: the client has sent a FIN.
pub const CLIENT_FIN: u8 = 2;
/// [`Connection::state`]: the endpoint has sent a FIN.
pub const ENDPOINT_FIN: u8 = 4;
/// [`Connection::state`]: either side has sent a RST.
pub const RESET: u8 = 8;

/// How long a client's packet to an endpoint that is gone may stay unanswered before tc resets the
/// TCP connection, in nanoseconds.
pub const SILENCE: u64 = 30 * SECOND;

/// A connection's time is written at most once per 2^28 ns (0.27 s).
pub const TICK: u32 = 28;

const SECOND: u64 = 1_000_000_000;

/// Whether a TCP connection is over.
#[inline(always)]
pub const fn is_closed(state: u8) -> bool {
    const BOTH: u8 = CLIENT_FIN | ENDPOINT_FIN;
    state & RESET != 0 || state & BOTH == BOTH
}

/// How long a connection is remembered without a packet, in nanoseconds.
///
/// The values are those of Linux's connection tracking (nf_conntrack_proto_tcp.c,
/// nf_conntrack_proto_udp.c), except for a closed TCP connection: only its last packets can still
/// arrive, and a SYN opens another connection.
#[inline(always)]
pub const fn lifetime(protocol: u8, state: u8) -> u64 {
    let seconds = if protocol == TCP {
        if is_closed(state) {
            10
        } else if state & ANSWERED == 0 {
            120
        } else if state & (CLIENT_FIN | ENDPOINT_FIN) != 0 {
            3_600
        } else {
            432_000
        }
    } else if state & ANSWERED == 0 {
        30
    } else {
        120
    };
    seconds * SECOND
}

layout! {
    /// Key of `connections4` and `connections6`: fields of a packet.
    #[repr(C, align(4))]
    pub struct Tuple<A> as Tuple4<[u8; 4]>, Tuple6<[u8; 16]> {
        /// Network order.
        pub source: A,
        /// Network order.
        pub destination: A,
        /// Host order.
        pub source_port: u16,
        /// Host order.
        pub destination_port: u16,
        /// The kernel's number.
        pub protocol: u8,
        /// [`FROM_CLIENT`] or [`TO_CLIENT`].
        pub way: u8,
        /// Zero.
        pub reserved: u16,
    }
}

layout! {
    /// Value of `connections4` and `connections6`: the packet's fields after translation.
    #[repr(C, align(8))]
    pub struct Connection<A> as Connection4<[u8; 4]>, Connection6<[u8; 16]> {
        /// Time (`CLOCK_MONOTONIC`, nanoseconds) of the last packet of this direction, or of an
        /// earlier one in the same [`TICK`].
        pub last_used: u64,
        /// Network order.
        pub source: A,
        /// Network order.
        pub destination: A,
        /// Host order.
        pub source_port: u16,
        /// Host order.
        pub destination_port: u16,
        /// Index of the Service port when the endpoint was chosen.
        pub service: u32,
        /// `revision` when the endpoint was last checked.
        pub revision: u32,
        /// TCP: sequence number of the SYN that the endpoint was chosen for.
        pub sequence: u32,
        /// [`ANSWERED`], [`CLIENT_FIN`], [`ENDPOINT_FIN`], [`RESET`].
        pub state: u8,
        /// [`REPLY`], [`HAIRPIN`], [`ENDPOINT_GONE`].
        pub kind: u8,
        /// Zero.
        pub reserved: u16,
        /// In the client's entry, if the endpoint is gone: time of the first packet without a
        /// reply, in units of [`TICK`]. A time before the last packet of the other entry means that
        /// the endpoint has replied since.
        pub asked: u32,
    }
}

layout! {
    /// Key of `fragments4` and `fragments6`.
    #[repr(C, align(4))]
    pub struct Fragment<A> as Fragment4<[u8; 4]>, Fragment6<[u8; 16]> {
        /// Network order.
        pub source: A,
        /// Network order.
        pub destination: A,
        /// The datagram's identification, as in the packet.
        pub identification: u32,
        /// The kernel's number.
        pub protocol: u8,
        /// [`FROM_CLIENT`] or [`TO_CLIENT`].
        pub way: u8,
        /// Zero.
        pub reserved: u16,
    }
}

layout! {
    /// Value of `fragments4` and `fragments6`: fields of later fragments after translation.
    #[repr(C, align(8))]
    pub struct Translation<A> as Translation4<[u8; 4]>, Translation6<[u8; 16]> {
        /// Time (`CLOCK_MONOTONIC`, nanoseconds) of the first fragment.
        pub first_seen: u64,
        /// Network order.
        pub source: A,
        /// Network order.
        pub destination: A,
        /// [`HAIRPIN`] or zero.
        pub kind: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// How long after the first fragment later ones are translated, in nanoseconds: half of the time
/// that Linux waits for all fragments of a datagram (`IP_FRAG_TIME`, include/net/ip.h).
pub const FRAGMENT_LIFETIME: u64 = 15 * SECOND;

/// A token bucket of one CPU that limits replies to refused packets: value of `refusals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Bucket {
    /// Time (`CLOCK_MONOTONIC`, nanoseconds) at which the bucket is full again.
    pub paid_until: u64,
}

impl Bucket {
    /// Nanoseconds per answer: 1,000 answers a second on each CPU. The kernel's own limit for ICMP
    /// allows as many on all CPUs together (`icmp_msgs_per_sec`).
    pub const COST: u64 = SECOND / 1_000;
    /// Most answers in a burst.
    pub const BURST: u64 = 500;

    /// Takes one answer out of the bucket at `now`. Returns whether there was one.
    #[inline(always)]
    pub const fn take(&mut self, now: u64) -> bool {
        let begin = if self.paid_until < now { now } else { self.paid_until };
        if begin - now > Self::COST * (Self::BURST - 1) {
            return false;
        }
        self.paid_until = begin + Self::COST;
        true
    }
}

const _: () = {
    assert!(size_of::<Tuple4>() == 16);
    assert!(size_of::<Connection4>() == 40);
    assert!(size_of::<Tuple6>() == 40);
    assert!(size_of::<Connection6>() == 64);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::UDP;

    #[test]
    fn a_connection_is_over_after_both_fins_or_a_reset() {
        assert!(!is_closed(ANSWERED | CLIENT_FIN));
        assert!(!is_closed(ANSWERED | ENDPOINT_FIN));
        assert!(is_closed(CLIENT_FIN | ENDPOINT_FIN));
        assert!(is_closed(RESET));
    }

    #[test]
    fn what_is_open_lives_longest_and_what_is_closed_shortest() {
        let of = |state| lifetime(TCP, state);
        assert!(of(ANSWERED) > of(ANSWERED | CLIENT_FIN));
        assert!(of(ANSWERED | CLIENT_FIN) > of(0));
        assert!(of(0) > of(RESET));
        assert!(lifetime(UDP, ANSWERED) > lifetime(UDP, 0));
    }

    #[test]
    fn a_bucket_gives_a_burst_and_then_its_rate() {
        let mut bucket = Bucket::default();
        let now = 5_000 * SECOND;
        assert_eq!((0..1_000).filter(|_| bucket.take(now)).count(), 500);
        let later = now + SECOND / 100;
        assert_eq!((0..1_000).filter(|_| bucket.take(later)).count(), 10);
        assert_eq!((0..1_000).filter(|_| bucket.take(now + 60 * SECOND)).count(), 500);
    }
}

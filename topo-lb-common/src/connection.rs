//! `connections4` and `connections6`: connections whose packets tc translates.
//!
//! Each has two entries, one for each [`way`](Tuple::way) that its packets go, keyed by what such
//! a packet says before it is translated. The value holds what it says after. The other entry's
//! key is the value's tuple turned round. The maps are LRU: an idle connection may go.
//!
//! `fragments4` and `fragments6` carry a first fragment's translation over to the later ones,
//! which have no ports.

use crate::address::TCP;
use crate::layout::layout;

/// [`Tuple::way`]: a packet that a client sends, seen when the node receives it.
pub const FROM_CLIENT: u8 = 0;
/// [`Tuple::way`]: a packet that a client is to get, seen when the node sends it.
pub const TO_CLIENT: u8 = 1;

/// [`Connection::kind`]: the entry of the answers.
pub const REPLY: u8 = 1;
/// [`Connection::kind`]: the client is its own endpoint. Packets of both ways come from its
/// device, and go back there; what it sends to itself comes from the Service's address.
pub const HAIRPIN: u8 = 2;
/// [`Connection::kind`]: the endpoint belongs to the Service no more.
pub const ENDPOINT_GONE: u8 = 4;

/// [`Connection::state`]: the endpoint has answered.
pub const ANSWERED: u8 = 1;
/// [`Connection::state`]: the client has sent a FIN.
pub const CLIENT_FIN: u8 = 2;
/// [`Connection::state`]: the endpoint has sent a FIN.
pub const ENDPOINT_FIN: u8 = 4;
/// [`Connection::state`]: either side has sent a RST.
pub const RESET: u8 = 8;

/// How long an endpoint that belongs to the Service no more may leave a client's packet unanswered
/// before a TCP connection to it is given up, in nanoseconds.
pub const SILENCE: u64 = 30 * SECOND;

/// A connection's times are written once in this while: 2 to the power of this in nanoseconds, some
/// 0.27 s.
pub const TICK: u32 = 28;

const SECOND: u64 = 1_000_000_000;

/// Whether a TCP connection is over.
#[inline(always)]
pub const fn is_closed(state: u8) -> bool {
    const BOTH: u8 = CLIENT_FIN | ENDPOINT_FIN;
    state & RESET != 0 || state & BOTH == BOTH
}

/// For how many nanoseconds without a packet a connection is remembered.
///
/// TCP's are those of Linux's connection tracking (nf_conntrack_proto_tcp.c, nf_conntrack_proto_udp.c),
/// but for a closed connection: only its last packets can still come, and a SYN begins anew anyway.
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
    /// Key of `connections4` and `connections6`: what a packet says.
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
    /// Value of `connections4` and `connections6`: what the packet says after translation.
    #[repr(C, align(8))]
    pub struct Connection<A> as Connection4<[u8; 4]>, Connection6<[u8; 16]> {
        /// The kernel's tick (`CLOCK_MONOTONIC`, nanoseconds) at the last packet of this way, or
        /// at an earlier one of the same [`TICK`].
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
        /// `revision` when the endpoint was last looked up.
        pub revision: u32,
        /// TCP: sequence number of the SYN that the endpoint was chosen for.
        pub sequence: u32,
        /// [`ANSWERED`], [`CLIENT_FIN`], [`ENDPOINT_FIN`], [`RESET`].
        pub state: u8,
        /// [`REPLY`], [`HAIRPIN`], [`ENDPOINT_GONE`].
        pub kind: u8,
        /// Zero.
        pub reserved: u16,
        /// The client's entry, of an endpoint that is gone: in units of [`TICK`], when the client
        /// first sent what the endpoint has not answered. What is not later than the other
        /// entry's last packet has been answered.
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
        /// The datagram's identification, as the packet has it.
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
    /// Value of `fragments4` and `fragments6`: what later fragments say after translation.
    #[repr(C, align(8))]
    pub struct Translation<A> as Translation4<[u8; 4]>, Translation6<[u8; 16]> {
        /// The kernel's tick (`CLOCK_MONOTONIC`, nanoseconds) at the first fragment.
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

/// For how many nanoseconds later fragments may follow the first: half of what Linux waits for
/// all of a datagram (`IP_FRAG_TIME`, include/net/ip.h).
pub const FRAGMENT_LIFETIME: u64 = 15 * SECOND;

/// A token bucket of one CPU, as one word per field: value of `refusals`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Bucket {
    /// `CLOCK_MONOTONIC`, in nanoseconds, up to which answers are paid for.
    pub paid_until: u64,
}

impl Bucket {
    /// Nanoseconds that an answer costs: 1,000 a second on each CPU, as many as the kernel's own
    /// limit for ICMP has for all of them (`icmp_msgs_per_sec`).
    pub const COST: u64 = SECOND / 1_000;
    /// Answers that may come at once.
    pub const BURST: u64 = 500;

    /// Whether one more may be sent at `now`; takes it off if so.
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

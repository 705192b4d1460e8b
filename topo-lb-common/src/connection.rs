//! `connections4`, `connections6`, `half_open4` and `half_open6`: connections that tc translates.
//!
//! A connection has two entries, one for each direction ([`way`](Tuple::way)). The key has a
//! packet's fields before translation and the client's device, the value the fields after it. The
//! key of the other entry is the value's four-tuple reversed.
//!
//! A new connection is in `half_open4/6`. It moves to `connections4/6` when the client has
//! completed TCP's handshake, or sends another datagram after an answer. From there nothing is evicted.
//! So packets that nobody answers end no connection in use.
//!
//! What is over leaves first: `closed4/6` has closed connections of `connections4/6` in the
//! order of their end, `settled4/6` those of `half_open4/6` that are closed, or whose datagram has its
//! answer, and `opened4/6` all of `half_open4/6` in the order of their opening. Each is a queue of a limited length.
//! What has to leave for others is the first one of such a queue: both its entries are removed together.
//!
//! `settled4/6` and `opened4/6` have the keys of the clients' entries, `closed4/6` those of the entries for replies:
//! a client that uses its port again has its key in another connection, while the endpoint may have the
//! port of the first one in TIME-WAIT ([`may_be_in_time_wait`]). Then only the client's entry goes at once.
//!
//! `fragments4` and `fragments6` hold a first fragment's translation for later ones without ports.

use crate::address::TCP;
use crate::device::seeded;
use crate::layout::layout;

/// [`Tuple::way`]: on ingress: a packet from a client, or a reply that [turns](TURNS).
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
/// [`Connection::kind`]: from outside to an endpoint of another node. The kernel gives its packets an
/// address of this node as their source, so that the replies come back here.
pub const MASQUERADE: u8 = 8;
/// [`Connection::kind`]: the same, but the programs give it that source ([`crate::snat`]). Packets of
/// both directions come by an uplink and leave by it.
pub const SNAT: u8 = 16;
/// [`Connection::kind`]: to an endpoint itself, and not to a frontend. A connection through a frontend has
/// this client's port at this endpoint, so the programs give this one another.
pub const DIRECT: u8 = 32;
/// [`Translation::kind`]: the datagram is not translated, but sent on to the endpoint's node ([`crate::hop`]).
pub const HOP: u8 = 64;
/// [`Connection::kind`]: packets of both directions are translated on ingress, so both entries have
/// [`FROM_CLIENT`].
pub const TURNS: u8 = HAIRPIN | SNAT;

/// [`Tuple::device`] of connections from outside: requests and replies may use different devices.
pub const OUTSIDE_DEVICE: u32 = 0;

/// [`Connection::state`]: the endpoint has replied.
pub const ANSWERED: u8 = 1;
/// [`Connection::state`]: the client has sent a FIN.
pub const CLIENT_FIN: u8 = 2;
/// [`Connection::state`]: the endpoint has sent a FIN.
pub const ENDPOINT_FIN: u8 = 4;
/// [`Connection::state`]: either side has sent a RST.
pub const RESET: u8 = 8;
/// [`Connection::state`]: the client has sent a SYN although the endpoint has answered; a SYN-ACK
/// of the endpoint begins the connection again.
pub const REOPENS: u8 = 16;
/// [`Connection::state`]: before any answer, the endpoint has sent a segment of another connection with this
/// four-tuple, which goes directly to it. The next SYN gets another source port.
pub const MET: u8 = 32;
/// [`Connection::state`]: a side has sent its FIN again, in another [`TICK`]: the other side has not acknowledged
/// the first one at once.
pub const FIN_AGAIN: u8 = 64;

/// [`Connection::affinity`]: the client keeps its endpoint once the connection is established.
pub const KEEPS: u8 = 1;
/// [`Connection::affinity`]: the same, for frontends that have other endpoints for clients outside.
pub const KEEPS_OUTSIDE: u8 = 2;

/// How far [`Connection::sent`] and [`Connection::acknowledged`] may be behind the packets, in
/// bytes: they are written once per [`TICK`] and after this many bytes.
pub const LAG: u32 = 1 << 15;
/// An acknowledgement further ahead than this is ignored, in bytes: more than a usual window.
pub const LONGEST_ACK: u32 = 1 << 26;

/// How long a client's packet to an endpoint that is gone may stay unanswered before tc resets the
/// TCP connection, in nanoseconds.
pub const SILENCE: u64 = 30 * SECOND;

/// A connection's time is written at most once per 2^28 ns (0.27 s).
pub const TICK: u32 = 28;

const SECOND: u64 = 1_000_000_000;

/// Whether a sequence number is at most [`LAG`] away from another.
#[inline(always)]
pub const fn is_near(sequence: u32, other: u32) -> bool {
    sequence.wrapping_sub(other).wrapping_add(LAG) <= 2 * LAG
}

/// Whether a RST or FIN with this sequence number belongs to the connection: it is neither before
/// what the receiver has `acknowledged` nor behind what the sender has `sent`, give or take
/// [`LAG`]. A blind one passes with a probability of (bytes in flight + 3 `LAG`) / 2^32: without
/// bytes in flight, 1 in 43,690.
///
/// What is near `sent` belongs to it whatever was acknowledged: nobody acknowledges what was not sent
/// (RFC 9293 §3.10.7.4), so a number ahead of it is false, and must not keep the connection open.
///
/// Linux's connection tracking checks a RST likewise (`nf_conntrack_tcp_packet`,
/// net/netfilter/nf_conntrack_proto_tcp.c), but writes for every packet.
#[inline(always)]
pub const fn is_in_window(sequence: u32, acknowledged: u32, sent: u32) -> bool {
    let in_flight = sent.wrapping_sub(acknowledged);
    // What was sent may lag behind what was acknowledged.
    let in_flight = if in_flight < 1 << 31 { in_flight } else { 0 };
    sequence.wrapping_sub(acknowledged).wrapping_add(LAG) <= in_flight.saturating_add(2 * LAG)
        || is_near(sequence, sent)
}

/// Whether a number is ahead of `recorded` by 1 to `most`, and must be recorded: by [`LAG`] or
/// more, or because recording `is_due`.
#[inline(always)]
pub const fn must_record(number: u32, recorded: u32, most: u32, is_due: bool) -> bool {
    let ahead = number.wrapping_sub(recorded);
    ahead != 0 && ahead <= most && (is_due || ahead >= LAG)
}

/// Whether a connection that is not established is over: a closed one of TCP, or an answered datagram.
#[inline(always)]
pub const fn is_settled(protocol: u8, state: u8) -> bool {
    if protocol == TCP { is_closed(state) } else { state & ANSWERED != 0 }
}

/// Whether a TCP connection is over.
#[inline(always)]
pub const fn is_closed(state: u8) -> bool {
    const BOTH: u8 = CLIENT_FIN | ENDPOINT_FIN;
    state & RESET != 0 || state & BOTH == BOTH
}

/// Whether the endpoint of a connection may have its source port, which is this node's, in TIME-WAIT: then another
/// connection is not to get that port.
#[inline(always)]
pub const fn may_be_in_time_wait(kind: u8, state: u8) -> bool {
    kind & SNAT != 0 && is_closed(state)
}

/// The shortest [`lifetime`], in nanoseconds: what was used since then is remembered in any state.
pub const SHORTEST_LIFETIME: u64 = 10 * SECOND;

/// How long an endpoint may remember a TCP connection that both sides have closed (TIME-WAIT), in
/// nanoseconds: twice the time that a segment may live. Linux takes 60 s (`TCP_TIMEWAIT_LEN`,
/// include/net/tcp.h).
pub const TIME_WAIT: u64 = 60 * SECOND;
/// The same by RFC 793 for a segment that lives for a minute; Linux's connection tracking waits so long, too.
pub const LONGEST_TIME_WAIT: u64 = 120 * SECOND;

/// How long a connection is remembered without a packet, in nanoseconds.
///
/// The values are those of Linux's connection tracking (nf_conntrack_proto_tcp.c,
/// nf_conntrack_proto_udp.c), except for a closed TCP connection: only its last packets can still
/// arrive, and a SYN opens another connection.
///
/// After one FIN it is that of `CLOSE_WAIT` as kube-proxy sets it (`conntrack.tcpCloseWaitTimeout`): one side may
/// go on for long. Connection tracking has less, 120 s, for a FIN that is not acknowledged; here only a FIN that is
/// sent again shows that, because an acknowledgement changes no state. Then it is 120 s also if one follows, as
/// there (`LAST_ACK`, `TIME_WAIT`).
#[inline(always)]
pub const fn lifetime(protocol: u8, state: u8) -> u64 {
    let seconds = if protocol == TCP {
        if is_closed(state) {
            SHORTEST_LIFETIME / SECOND
        } else if state & ANSWERED == 0 || state & FIN_AGAIN != 0 {
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
    /// Key of `connections4/6` and `half_open4/6`: fields of a packet, and its client's device.
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
        /// Interface index of the client's device. A packet of another device never matches.
        pub device: u32,
    }
}

layout! {
    /// Value of `connections4/6` and `half_open4/6`: the packet's fields after translation.
    #[repr(C, align(8))]
    pub struct Connection<A, K> as
        Connection4<[u8; 4], Tuple4>, Connection6<[u8; 16], Tuple6>
    {
        /// Time (`CLOCK_MONOTONIC`, nanoseconds) of the last packet of this direction, or of an
        /// earlier one in the same [`TICK`].
        pub last_used: u64,
        /// The entry's key. The kernel may give a removed entry to another connection while a
        /// program uses it; the program sees that here.
        pub key: K,
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
        /// In the client's entry, TCP: sequence number of its last SYN.
        pub sequence: u32,
        /// TCP: the number behind the last byte of this direction, at most [`LAG`] behind.
        pub sent: u32,
        /// TCP: the last acknowledgement of this direction, at most [`LAG`] behind.
        pub acknowledged: u32,
        /// In the client's entry, if the endpoint is gone: time of the first packet without a
        /// reply, in units of [`TICK`]. A time before the last packet of the other entry means that
        /// the endpoint has replied since.
        pub asked: u32,
        /// [`ANSWERED`], [`CLIENT_FIN`], [`ENDPOINT_FIN`], [`RESET`], [`REOPENS`], [`MET`],
        /// [`FIN_AGAIN`].
        pub state: u8,
        /// [`REPLY`], [`HAIRPIN`], [`ENDPOINT_GONE`], [`MASQUERADE`], [`SNAT`], [`DIRECT`].
        pub kind: u8,
        /// Zero, [`KEEPS`] or [`KEEPS_OUTSIDE`].
        pub affinity: u8,
        /// The endpoint's [`Locality`](crate::backend::Locality).
        pub locality: u8,
        /// Zero.
        pub reserved: [u8; 4],
    }
}

impl<A: Copy> Connection<A, Tuple<A>> {
    /// The key of the entry for the other direction. `key`: that of this one.
    #[inline(always)]
    #[must_use]
    pub const fn other_key(&self, key: &Tuple<A>) -> Tuple<A> {
        Tuple {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            way: if self.kind & (REPLY | TURNS) == 0 { TO_CLIENT } else { FROM_CLIENT },
            ..*key
        }
    }
}

/// Datagrams whose first fragment is stored at once, per device and direction. A device has places
/// of its own, so it cannot evict what others need.
pub const FRAGMENT_PLACES: u32 = 256;
/// The same of all clients outside, per direction. A sender's datagrams are spread over all of these, and nobody
/// knows where another's are: 10,000 first fragments a second take the place of 1 in 400 datagrams whose
/// fragments arrive 1 ms apart. A young datagram is replaced, too: keeping it would refuse places to many more.
pub const FRAGMENT_PLACES_OUTSIDE: u32 = 1 << 12;

/// Key of `fragments4` and `fragments6`: a place for a fragmented datagram.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct FragmentPlace {
    /// Interface index of the client's device, or [`OUTSIDE_DEVICE`].
    pub device: u32,
    /// Less than [`FRAGMENT_PLACES`] or [`FRAGMENT_PLACES_OUTSIDE`].
    pub place: u16,
    /// [`FROM_CLIENT`] or [`TO_CLIENT`].
    pub way: u8,
    /// Zero.
    pub reserved: u8,
}

impl FragmentPlace {
    /// The place of a guest's datagram with this identification, as in the packet.
    #[inline(always)]
    #[must_use]
    pub const fn of(device: u32, way: u8, identification: u32) -> Self {
        // Fibonacci hashing: numbers in sequence get different places.
        let place = (identification.wrapping_mul(0x9e37_79b1) >> 24) as u16;
        Self { device, place, way, reserved: 0 }
    }

    /// The same of a client outside, or to one. `sender`: [`word`](crate::device::word) of its source.
    #[inline(always)]
    #[must_use]
    pub const fn outside(seed: u64, way: u8, sender: u64, identification: u32) -> Self {
        let hash = seeded(seed, seeded(seed, sender) ^ identification as u64);
        let place = (hash >> 32) as u16 & (FRAGMENT_PLACES_OUTSIDE - 1) as u16;
        Self { device: OUTSIDE_DEVICE, place, way, reserved: 0 }
    }
}

layout! {
    /// A fragmented datagram.
    #[repr(C, align(4))]
    pub struct Fragment<A> as Fragment4<[u8; 4]>, Fragment6<[u8; 16]> {
        /// Network order.
        pub source: A,
        /// Network order.
        pub destination: A,
        /// The datagram's identification, as in the packet.
        pub identification: u32,
        /// The kernel's number.
        pub protocol: u32,
    }
}

layout! {
    /// Value of `fragments4` and `fragments6`: fields of later fragments after translation.
    #[repr(C, align(8))]
    pub struct Translation<A, K> as
        Translation4<[u8; 4], Fragment4>, Translation6<[u8; 16], Fragment6>
    {
        /// Time (`CLOCK_MONOTONIC`, nanoseconds) of the first fragment.
        pub first_seen: u64,
        /// The datagram.
        pub datagram: K,
        /// Network order.
        pub source: A,
        /// Network order.
        pub destination: A,
        /// [`HAIRPIN`], [`MASQUERADE`], [`SNAT`], [`HOP`] or zero.
        pub kind: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// How long after the first fragment later ones are translated, in nanoseconds: half of the time
/// that Linux waits for all fragments of a datagram (`IP_FRAG_TIME`, include/net/ip.h).
pub const FRAGMENT_LIFETIME: u64 = 15 * SECOND;

const _: () = {
    assert!(size_of::<Tuple4>() == 20);
    assert!(size_of::<Connection4>() == 72);
    assert!(size_of::<Tuple6>() == 44);
    assert!(size_of::<Connection6>() == 120);
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::UDP;

    #[test]
    fn the_two_entries_of_a_connection_name_each_other() {
        for (kind, back) in
            [(0, TO_CLIENT), (MASQUERADE, TO_CLIENT), (HAIRPIN, FROM_CLIENT), (SNAT, FROM_CLIENT)]
        {
            let (c, f, s, b) = ([1; 4], [2; 4], [3; 4], [4; 4]);
            let key = Tuple4 {
                source: c,
                destination: f,
                source_port: 1,
                destination_port: 2,
                ..Tuple4::default()
            };
            let client = Connection4 {
                source: s,
                destination: b,
                source_port: 3,
                destination_port: 4,
                kind,
                ..Connection4::default()
            };
            let other = Tuple4 {
                source: b,
                destination: s,
                source_port: 4,
                destination_port: 3,
                way: back,
                ..Tuple4::default()
            };
            let reply = Connection4 {
                source: f,
                destination: c,
                source_port: 2,
                destination_port: 1,
                kind: kind | REPLY,
                ..Connection4::default()
            };
            assert_eq!(client.other_key(&key), other);
            assert_eq!(reply.other_key(&other), key);
        }
    }

    #[test]
    fn a_datagram_from_outside_has_its_place_by_its_sender_and_its_number() {
        let places = |one: fn(u32) -> (u64, u32)| {
            let of = |number| {
                let (sender, identification) = one(number);
                FragmentPlace::outside(7, FROM_CLIENT, sender, identification).place
            };
            let mut places: Vec<u16> = (0..1_000).map(of).collect();
            places.sort_unstable();
            places.dedup();
            places.len()
        };
        // By chance, 1,000 datagrams take 887 of 4,096 places.
        assert!(places(|number| (1, number)) > 850);
        assert!(places(|number| (number.into(), 1)) > 850);
    }

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
        assert!(of(ANSWERED | CLIENT_FIN) > of(ANSWERED | CLIENT_FIN | FIN_AGAIN));
        assert!(of(ANSWERED | CLIENT_FIN | FIN_AGAIN) >= of(0));
        assert!(of(0) > of(RESET));
        assert!(lifetime(UDP, ANSWERED) > lifetime(UDP, 0));
        let all = [TCP, UDP]
            .into_iter()
            .flat_map(|protocol| (0..=u8::MAX).map(move |state| lifetime(protocol, state)));
        assert_eq!(all.min(), Some(SHORTEST_LIFETIME));
    }

    #[test]
    fn a_reset_counts_from_what_was_acknowledged_to_what_was_sent() {
        for base in [1_000_000, u32::MAX - 10, 5] {
            let is_in = |offset: i64| {
                let sequence = base.wrapping_add(offset as u32);
                is_in_window(sequence, base, base.wrapping_add(100_000))
            };
            let lag = i64::from(LAG);
            for inside in [0, 1, 100_000, 100_000 + lag, -lag] {
                assert!(is_in(inside), "{inside} from {base}");
            }
            for outside in [-lag - 1, 100_001 + lag, 1 << 31, -(1 << 30), 1 << 30] {
                assert!(!is_in(outside), "{outside} from {base}");
            }
        }
    }

    #[test]
    fn what_was_sent_may_lag_behind_what_was_acknowledged() {
        assert!(is_in_window(500, 500, 400));
        assert!(!is_in_window(1 << 31, 500, 400));
    }

    #[test]
    fn a_false_acknowledgement_does_not_hide_what_follows_what_was_sent() {
        for sent in [400, u32::MAX - 10] {
            let acknowledged = sent.wrapping_add(LONGEST_ACK);
            assert!(is_in_window(sent, acknowledged, sent));
            assert!(!is_in_window(sent.wrapping_add(LONGEST_ACK / 2), acknowledged, sent));
        }
    }

    #[test]
    fn numbers_are_recorded_once_a_tick_and_after_the_lag() {
        assert!(!must_record(10, 10, LONGEST_ACK, true));
        assert!(must_record(11, 10, LONGEST_ACK, true));
        assert!(!must_record(11, 10, LONGEST_ACK, false));
        assert!(must_record(10 + LAG, 10, LONGEST_ACK, false));
        assert!(!must_record(9, 10, LONGEST_ACK, true));
        assert!(!must_record(11 + LONGEST_ACK, 10, LONGEST_ACK, true));
    }
}

//! `services4`, `services6`, `records4` and `records6`: what a connection to a frontend needs.
//!
//! `services*` maps a frontend to the index of its record, one aligned word. A record never changes
//! while a program can read it: the agent writes a free record, then its index, and uses the old
//! record again only after a grace period. The kernel may give a removed element of `services*` to
//! another frontend while a program still reads the index in it; so a record has its frontend, and a
//! reader that finds another one looks up again. docs/internals.md has the ordering argument.

use crate::layout::layout;

/// Endpoints in an IPv4 record; a Service with more has them in `slots4`.
pub const INLINE4: usize = 6;
/// Endpoints in an IPv6 record; a Service with more has them in `slots6`.
pub const INLINE6: usize = 4;

/// Records beyond one for each frontend: replaced records wait here for a grace period.
pub const SPARE: u32 = 512;

/// [`Record::tier`] if no key matched: unconstrained, or refused.
pub const NO_TIER: u8 = 255;

/// [`Record::wider`] of a record without endpoints whose connections are dropped, not refused:
/// `externalTrafficPolicy: Local` on a node without an endpoint.
pub const DROPS: u16 = u16::MAX;

/// The first bit of [`Record::localities`] behind those of the endpoints.
pub const FAILURES_SHIFT: u32 = 12;

layout! {
    /// Value of `records4` and `records6`: whole cache lines. Host order but for addresses.
    #[repr(C, align(64))]
    pub struct Record<A, ADDRESSES, PORTS, REST> as
        Record4<[u8; 4], [[u8; 4]; INLINE4], [u16; INLINE4], [u8; 0]>,
        Record6<[u8; 16], [[u8; 16]; INLINE6], [u16; INLINE6], [u8; 16]>
    {
        /// The frontend's address, network order.
        pub address: A,
        /// The frontend's port, 1–65535; zero in a free record.
        pub port: u16,
        /// The frontend's protocol, as in [`Frontend`](crate::address::Frontend).
        pub protocol: u8,
        /// Index of the topology key that matched, or [`NO_TIER`].
        pub tier: u8,
        /// Index of the Service port, in `counters`, `names`, `members*` and `affinity*`.
        pub service: u32,
        /// First slot of the endpoints, or [`NO_SLOTS`](crate::selection::NO_SLOTS): they are here.
        pub slot_base: u32,
        /// Session affinity in seconds; zero for none.
        pub affinity_seconds: u32,
        /// The endpoints' addresses, network order.
        pub addresses: ADDRESSES,
        /// The endpoints' ports.
        pub ports: PORTS,
        /// Endpoints of the chosen tier; zero refuses, or drops.
        pub count: u16,
        /// Endpoints of the wider tier, only for spilled connections. Without endpoints: zero, or
        /// [`DROPS`].
        pub wider: u16,
        /// Share of new connections for the wider tier, out of
        /// [`SPILL_ONE`](crate::selection::SPILL_ONE), or [`LEASED`](crate::selection::LEASED).
        pub spill: u16,
        /// Two bits for each endpoint here, the first one's lowest: a
        /// [`Locality`](crate::backend::Locality). From [`FAILURES_SHIFT`] on, how many failures in a row
        /// the agent hears of; zero for none.
        pub localities: u16,
        /// Zero.
        pub reserved: REST,
    }
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Record4>() == 64);
    assert!(size_of::<Record6>() == 128);
    // A program limits a place to the next power of two: it then stays within the record.
    assert!(offset_of!(Record4, addresses) + INLINE4.next_power_of_two() * 4 <= 64);
    assert!(offset_of!(Record4, ports) + INLINE4.next_power_of_two() * 2 <= 64);
    assert!(INLINE6.is_power_of_two());
    assert!(2 * INLINE4 <= FAILURES_SHIFT as usize && INLINE6 <= INLINE4);
    assert!((crate::failing::MOST_FAILURES as u32) < 1 << (16 - FAILURES_SHIFT));
};

//! `openings4` and `openings6`: the last connections that each client has opened at each frontend. While
//! their table is full of openings, each further one takes the place of the client's own oldest.

use crate::connection::{Tuple4, Tuple6};

/// Entries of `openings4` and of `openings6`. Clients and frontends share them by a hash.
pub const BUCKETS: u32 = 1 << 10;
/// Openings that a bucket remembers.
pub const EACH: u32 = 64;

/// Value of `openings4` and of `openings6`. CPUs that open connections at the same moment may write to one
/// place, and a key may be half of each: then a look-up finds no connection, and an opening stays longer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Openings<K> {
    /// Number of the next opening, modulo 2^32.
    pub next: u32,
    /// The keys of the clients' packets, each at the opening's number modulo [`EACH`].
    pub keys: [K; EACH as usize],
}

/// [`Openings`] of one address family.
pub type Openings4 = Openings<Tuple4>;
/// [`Openings`] of one address family.
pub type Openings6 = Openings<Tuple6>;

const _: () = {
    assert!(size_of::<Openings4>() == 4 + 64 * size_of::<Tuple4>());
    assert!(size_of::<Openings6>() == 4 + 64 * size_of::<Tuple6>());
};

/// The bucket of openings at a frontend by a client. `client`: [`word`](crate::device::word) or an
/// interface index; `address`: of the frontend, network order, IPv6
/// [`folded`](crate::reply_filter::folded); `port`: host order.
#[inline(always)]
#[must_use]
pub const fn bucket(seed: u64, client: u64, address: u32, port: u16, protocol: u8) -> u32 {
    let frontend = (address as u64) << 32 | (protocol as u64) << 16 | port as u64;
    let hash = crate::device::seeded(seed, crate::device::seeded(seed, client) ^ frontend);
    (hash >> 32) as u32 & (BUCKETS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_another_bucket_at_another_frontend() {
        let mut buckets: Vec<u32> = (0..1_000).map(|port| bucket(7, 1, 2, port, 6)).collect();
        buckets.sort_unstable();
        buckets.dedup();
        // By chance, 1,000 of 1,024 places leave 37 of 100 empty.
        assert!(buckets.len() > 550, "{}", buckets.len());
    }
}

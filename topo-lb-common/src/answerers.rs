//! `answerers`: which endpoints may have something to answer to a client of tc.
//!
//! A packet on its way to a client is looked up in the connection table only if its sender is marked
//! here. A mark too many costs a look-up; none may be missing. The map is of one agent: it is not
//! pinned, and while [`WHOLE`] is not set the programs look every packet up.

/// Marks.
pub const PLACES: u32 = 1 << 16;
/// Behind the marks: not zero once every connection's endpoint has one.
pub const WHOLE: u32 = PLACES;
/// Entries of `answerers`.
pub const ENTRIES: u32 = PLACES + 1;

/// An IPv6 address, in network order, as the one word that [`place`] takes.
#[inline(always)]
#[must_use]
pub const fn folded([a, b, c, d]: [u32; 4]) -> u32 {
    a ^ b ^ c ^ d
}

/// Where the mark of an endpoint is. `address` is in network order, of IPv6 [`folded`]; `port` is in
/// host order.
#[inline(always)]
#[must_use]
pub const fn place(address: u32, port: u16) -> u32 {
    // Multiplied by 2^32 ÷ the golden ratio, of which the upper half is the mixed one (Knuth, The
    // Art of Computer Programming, volume 3, §6.4); the port by another odd number before.
    let both = address ^ (port as u32).wrapping_mul(0x85eb_ca6b);
    both.wrapping_mul(0x9e37_79b9) >> 16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_a_cluster_have_places_of_their_own() {
        // 2,000 pods in a row of addresses, each with one port: of so many in so many places, 30
        // share one by chance.
        let mut taken = [false; PLACES as usize];
        let mut shared = 0;
        for pod in 0..2_000_u32 {
            let address = u32::from_ne_bytes((0x0af4_0000 + pod).to_be_bytes());
            let place = &mut taken[place(address, 8080) as usize];
            shared += u32::from(core::mem::replace(place, true));
        }
        assert!(shared < 60, "{shared}");
    }
}

//! `frontends`: a bit for each frontend, so that other addresses and ports cost no look-up.
//!
//! Only with `--frontends all`: there, frontends can have any address, and `range` would
//! exclude nothing. A surplus bit costs a look-up; a missing one would leave a frontend untouched. So
//! the agent sets the bit before it publishes a frontend, and clears it after it has removed the last
//! frontend that has it. Only the agent writes.

use crate::reply_filter::mixed;

/// Bits per word.
const BITS: u32 = u64::BITS;
/// Words in `frontends`: 64 KiB. Of 10,000 frontends, 2 % of other addresses and ports share a bit.
pub const WORDS: u32 = 1 << 13;

/// The bit of a frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendBit {
    /// Index of the word in `frontends`.
    pub word: u32,
    /// The bit in that word, as a mask.
    pub mask: u64,
}

/// The bit of the frontends with an address and a port, whatever their protocol. `address`: network
/// order, IPv6 [`folded`](crate::reply_filter::folded); `port`: host order.
#[inline(always)]
#[must_use]
pub const fn bit(address: u32, port: u16) -> FrontendBit {
    // Addresses of a range differ in their last bytes, which are the upper ones here. A product's lower
    // bits do not depend on upper bits: without the shift, all Pods of a node share bits with a range of
    // frontends, or none does.
    let place = mixed(address ^ address >> 16, port) >> (32 - (WORDS * BITS).ilog2());
    FrontendBit { word: place / BITS, mask: 1 << (place % BITS) }
}

/// The bit that is set while any frontend has a record for clients outside alone
/// ([`OUTSIDE`](crate::address::OUTSIDE)): without one, programs look for none. That of an address and port
/// that no frontend has.
pub const ANY_OUTSIDE: FrontendBit = bit(0, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_frontends_leave_nearly_all_bits_clear() {
        let mut words = vec![0_u64; WORDS as usize];
        for service in 0..10_000_u32 {
            let address = u32::from_ne_bytes((0x0a60_0000 + service).to_be_bytes());
            let FrontendBit { word, mask } = bit(address, 80);
            words[word as usize] |= mask;
        }
        let set: u32 = words.iter().map(|word| word.count_ones()).sum();
        assert!((9_000..=10_000).contains(&set), "{set}");
        let node = u32::from_ne_bytes([172, 18, 0, 2]);
        let hits = (1..=u16::MAX).filter(|&port| {
            let FrontendBit { word, mask } = bit(node, port);
            words[word as usize] & mask != 0
        });
        let hits = hits.count();
        assert!(hits < 65_535 / 25, "{hits} of 65,535 other ports");
        for (node, port) in (0..40_u32).flat_map(|node| [(node, 80), (node, 9376), (node, 9500)]) {
            let hits = (0..256).filter(|pod| {
                let pod = u32::from_ne_bytes((0x0af4_0000 + node * 256 + pod).to_be_bytes());
                let FrontendBit { word, mask } = bit(pod, port);
                words[word as usize] & mask != 0
            });
            let hits = hits.count();
            assert!(hits < 256 / 4, "{hits} of 256 Pods of node {node}, port {port}");
        }
    }
}

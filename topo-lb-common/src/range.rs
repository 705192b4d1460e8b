//! `range`: one entry with the range of all frontends: other addresses cost no look-up.
//!
//! Each half is one aligned 64-bit word, which the agent replaces by one store. The agent widens
//! the range before it writes a frontend outside it, and narrows it after it has removed one.

/// The one entry of `range`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct Range {
    /// What every IPv4 frontend is after masking with [`mask4`](Self::mask4). Network order.
    pub network4: [u8; 4],
    /// Network order.
    pub mask4: [u8; 4],
    /// The first eight bytes of every IPv6 frontend; all zero if they differ: any address may be
    /// one.
    pub prefix6: [u8; 8],
}

impl Range {
    /// No frontend: `255.255.255.255/32`, and a multicast prefix that no Service can have.
    pub const EMPTY: Self = Self { network4: [255; 4], mask4: [255; 4], prefix6: [255; 8] };

    /// Whether a frontend can have this IPv4 address.
    #[inline(always)]
    pub const fn holds4(self, address: [u8; 4]) -> bool {
        u32::from_ne_bytes(address) & u32::from_ne_bytes(self.mask4)
            == u32::from_ne_bytes(self.network4)
    }

    /// Whether a frontend can have an IPv6 address that begins with these words, in network order. Words,
    /// because the compiler takes bytes of them apart on a program's small stack.
    #[inline(always)]
    pub const fn holds6(self, [first, second]: [u32; 2]) -> bool {
        let [a, b, c, d, e, f, g, h] = self.prefix6;
        let own = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
        own.0 | own.1 == 0 || own.0 == first && own.1 == second
    }

    /// The smallest range that includes this one and `address`.
    #[must_use]
    pub const fn with4(mut self, address: [u8; 4]) -> Self {
        if u64::from_ne_bytes(self.half4()) == u64::MAX {
            self.network4 = address;
            return self;
        }
        let new = u32::from_be_bytes(address);
        let differ = new ^ u32::from_be_bytes(self.network4);
        let wider = match differ.checked_ilog2() {
            None => u32::MAX,
            Some(31) => 0,
            Some(bit) => u32::MAX << (bit + 1),
        };
        let mask = u32::from_be_bytes(self.mask4) & wider;
        self.mask4 = mask.to_be_bytes();
        self.network4 = (new & mask).to_be_bytes();
        self
    }

    /// The smallest range that includes this one and an IPv6 address with these first eight bytes.
    #[must_use]
    pub const fn with6(mut self, prefix: [u8; 8]) -> Self {
        let own = u64::from_ne_bytes(self.prefix6);
        if own == u64::MAX {
            self.prefix6 = prefix;
        } else if own != u64::from_ne_bytes(prefix) {
            self.prefix6 = [0; 8];
        }
        self
    }

    const fn half4(self) -> [u8; 8] {
        let ([a, b, c, d], [e, f, g, h]) = (self.network4, self.mask4);
        [a, b, c, d, e, f, g, h]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words([a, b, c, d, e, f, g, h]: [u8; 8]) -> [u32; 2] {
        [[a, b, c, d], [e, f, g, h]].map(u32::from_ne_bytes)
    }

    #[test]
    fn an_empty_range_holds_nothing_that_can_be_a_service() {
        assert!(!Range::EMPTY.holds4([10, 96, 0, 1]));
        assert!(!Range::EMPTY.holds6(words([0xfd, 0, 0, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn one_address_is_a_range_of_one() {
        let range = Range::EMPTY.with4([10, 96, 0, 1]);
        assert!(range.holds4([10, 96, 0, 1]));
        assert!(!range.holds4([10, 96, 0, 2]));
    }

    proptest! {
        #[test]
        fn a_range_holds_all_that_it_was_made_of(
            fours: Vec<[u8; 4]>, sixes: Vec<[u8; 8]>,
        ) {
            let mut range = Range::EMPTY;
            for four in &fours { range = range.with4(*four); }
            for six in &sixes { range = range.with6(*six); }
            for four in fours { prop_assert!(range.holds4(four)); }
            for six in sixes { prop_assert!(range.holds6(words(six))); }
        }
    }
}

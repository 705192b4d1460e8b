//! `reply_filter`: marks of endpoints that may reply to a client of tc.
//!
//! tc looks up a packet to a client in the connection table only if its sender is marked here. A
//! surplus mark costs a look-up; a missing one would break a connection. The map is not pinned:
//! each agent has its own. Until its marks are [`complete`](ReplyFilterEntry::complete), the
//! programs look up every packet.

/// Marks per entry; an entry fills one cache line.
pub const MARKS: usize = 60;
/// Entries of `reply_filter`.
pub const ENTRIES: u32 = 1 << 10;

/// Value of `reply_filter`. Programs and the agent write each field separately.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
pub struct ReplyFilterEntry {
    /// Not zero once every connection's endpoint has its mark.
    pub complete: u32,
    /// Not zero: an endpoint with this place may reply.
    pub marks: [u8; MARKS],
}

/// The place of an endpoint's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplyFilterPlace {
    /// Index of the entry in `reply_filter`.
    pub entry: u32,
    /// Index of the mark in [`marks`](ReplyFilterEntry::marks).
    pub mark: u32,
}

/// Folds an IPv6 address, in network order, to the one word that [`place`] takes.
#[inline(always)]
#[must_use]
pub const fn folded([a, b, c, d]: [u32; 4]) -> u32 {
    a ^ b ^ c ^ d
}

/// A hash of an address and a port, with well mixed upper bits.
#[inline(always)]
pub(crate) const fn mixed(address: u32, port: u16) -> u32 {
    // Multiplied by 2^32 ÷ the golden ratio; the upper bits of the product are well mixed (Knuth,
    // The Art of Computer Programming, volume 3, §6.4). The port is multiplied by another odd
    // number first.
    let both = address ^ (port as u32).wrapping_mul(0x85eb_ca6b);
    both.wrapping_mul(0x9e37_79b9)
}

/// The place of an endpoint's mark. `address`: network order, IPv6 [`folded`]; `port`: host order.
#[inline(always)]
#[must_use]
pub const fn place(address: u32, port: u16) -> ReplyFilterPlace {
    let mixed = mixed(address, port);
    let mark = ((mixed >> 6 & 0xffff) * MARKS as u32) >> 16;
    ReplyFilterPlace { entry: mixed >> 22, mark }
}

/// The place of the mark of an endpoint to which a [`DIRECT`](crate::connection::DIRECT) connection goes: its
/// packets have to be looked up, too. It is another mark, so that all writers of a mark write the same.
#[inline(always)]
#[must_use]
pub const fn direct_place(address: u32, port: u16) -> ReplyFilterPlace {
    place(!address, port)
}

const _: () = assert!(size_of::<ReplyFilterEntry>() == 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_a_cluster_have_places_of_their_own() {
        // 2,000 Pods with consecutive addresses and one port each: 32 would share a place by
        // chance.
        let mut taken = [[false; MARKS]; ENTRIES as usize];
        let mut shared = 0;
        for pod in 0..2_000_u32 {
            let address = u32::from_ne_bytes((0x0af4_0000 + pod).to_be_bytes());
            let ReplyFilterPlace { entry, mark } = place(address, 8080);
            let place = &mut taken[entry as usize][mark as usize];
            shared += u32::from(core::mem::replace(place, true));
        }
        assert!(shared < 60, "{shared}");
    }
}

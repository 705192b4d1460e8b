//! The choice of an endpoint for a new connection: in constant time, without state. The kernel and
//! the property tests run this code.

/// The [`Selection::spill`] of all connections: a share is in hundredths of a percent.
pub const SPILL_ONE: u16 = 10_000;

/// In place of a share: the endpoints of the chosen tier count only while the agent renews the map
/// `lease`, and the wider tier at all other times.
pub const LEASED: u16 = u16::MAX;

/// In place of a share, of a row without a wider tier: the row is a table for a consistent choice (Maglev). tc
/// chooses in it by a hash of the client, the same on every node, and the hooks of sockets at random.
pub const HASHED: u16 = LEASED - 1;

/// [`Selection::slot_base`] if the endpoints are in the record.
pub const NO_SLOTS: u32 = u32::MAX;

/// How to choose among a Service's endpoints.
///
/// The endpoints form a row: first [`count`](Self::count) of the chosen tier, then
/// [`wider`](Self::wider) of the next one, which get a share of `spill` ÷ [`SPILL_ONE`] of the new
/// connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Selection {
    /// First slot of the row, or [`NO_SLOTS`].
    pub slot_base: u32,
    /// Endpoints of the chosen tier; zero refuses.
    pub count: u16,
    /// Endpoints of the wider tier, only for spilled connections.
    pub wider: u16,
    /// Share of new connections for the wider tier, out of [`SPILL_ONE`].
    pub spill: u16,
}

/// The choice for a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Refuse: no endpoint may be used.
    Refuse,
    /// The endpoint at this place of the record's row.
    Inline(u32),
    /// The endpoint in this slot.
    Slot(u32),
}

/// `random`, uniform over 32 bits, scaled to 0‥`count`; the bias is below `count` ÷ 2³².
#[inline(always)]
const fn scale(random: u32, count: u16) -> u32 {
    ((random as u64 * count as u64) >> 32) as u32
}

impl Selection {
    /// Chooses by a uniform random number of 32 bits. Calls `random` only if there is a choice.
    ///
    /// With a spill the number decides twice: its high part whether the connection spills, and what is
    /// left of it the endpoint. That is uniform over 2³² ÷ [`SPILL_ONE`] values: of up to 4,000 endpoints
    /// none gets 1 % more or less than another, and of 65,535 none 16 %.
    #[inline(always)]
    pub fn choose(&self, random: impl FnOnce() -> u32) -> Choice {
        if self.count == 0 {
            return Choice::Refuse;
        }
        let index = if self.spill != 0 && self.wider != 0 {
            let scaled = random() as u64 * SPILL_ONE as u64;
            let (share, rest) = ((scaled >> 32) as u32, scaled as u32);
            if share < self.spill as u32 {
                self.count as u32 + scale(rest, self.wider)
            } else {
                scale(rest, self.count)
            }
        } else if self.count == 1 {
            0
        } else {
            scale(random(), self.count)
        };
        if self.slot_base == NO_SLOTS {
            Choice::Inline(index)
        } else {
            Choice::Slot(self.slot_base.wrapping_add(index))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn plain(count: u16) -> Selection {
        Selection { slot_base: NO_SLOTS, count, wider: 0, spill: 0 }
    }

    #[test]
    fn an_empty_service_refuses() {
        assert_eq!(plain(0).choose(|| unreachable!()), Choice::Refuse);
    }

    #[test]
    fn one_endpoint_needs_no_random_number() {
        assert_eq!(plain(1).choose(|| unreachable!()), Choice::Inline(0));
        let slotted = Selection { slot_base: 7, ..plain(1) };
        assert_eq!(slotted.choose(|| unreachable!()), Choice::Slot(7));
    }

    #[test]
    fn every_endpoint_is_reached_and_about_equally_often() {
        let mut hits = [0u32; 5];
        for step in 0..100_000u32 {
            let random = step.wrapping_mul(2_654_435_761);
            match plain(5).choose(|| random) {
                Choice::Inline(index) => hits[index as usize] += 1,
                other => panic!("{other:?}"),
            }
        }
        for hit in hits {
            assert!((19_000..=21_000).contains(&hit), "{hits:?}");
        }
    }

    #[test]
    fn spill_takes_its_share_and_only_of_the_wider_row() {
        let spilling = Selection { spill: SPILL_ONE / 20, wider: 3, ..plain(2) };
        let mut spilled = 0;
        for step in 0..100_000u32 {
            match spilling.choose(|| step.wrapping_mul(2_654_435_761)) {
                Choice::Inline(0 | 1) => {}
                Choice::Inline(2..=4) => spilled += 1,
                choice => panic!("{choice:?}"),
            }
        }
        assert!((4_900..=5_100).contains(&spilled), "{spilled} of 100000");
    }

    /// Each endpoint of either row gets its share, although one number decides both. All numbers, in
    /// steps of a prime.
    #[test]
    fn whether_a_connection_spills_says_nothing_of_its_endpoint() {
        const STEP: usize = 1_009;
        let spilling = Selection { spill: SPILL_ONE / 5, wider: 3, ..plain(2) };
        let mut hits = [0f64; 5];
        for random in (0..=u32::MAX).step_by(STEP) {
            match spilling.choose(|| random) {
                Choice::Inline(index) => hits[index as usize] += 1.0,
                choice => panic!("{choice:?}"),
            }
        }
        let all: f64 = hits.iter().sum();
        for (hit, wanted) in hits.iter().zip([0.4, 0.4, 0.2 / 3.0, 0.2 / 3.0, 0.2 / 3.0]) {
            assert!((hit / all / wanted - 1.0).abs() < 1e-3, "{hits:?}");
        }
    }

    proptest! {
        #[test]
        fn the_index_never_leaves_the_row(
            count in 1u16.., wider in 0u16..100, spill in 0..=SPILL_ONE,
            base in 0u32..1_000_000, random: u32,
        ) {
            let slotted = Selection { slot_base: base, spill, wider, ..plain(count) };
            match slotted.choose(|| random) {
                Choice::Slot(slot) => {
                    let end = base + u32::from(count) + u32::from(wider);
                    prop_assert!(slot >= base && slot < end);
                    if spill == 0 { prop_assert!(slot < base + u32::from(count)); }
                    if spill == SPILL_ONE && wider > 0 {
                        prop_assert!(slot >= base + u32::from(count));
                    }
                }
                other => prop_assert!(false, "{other:?}"),
            }
        }
    }
}

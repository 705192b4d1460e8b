//! Free ranges of an array map: of records, or of slots for endpoints that do not fit into one.

use std::collections::BTreeMap;

/// Free ranges: first slot and length. Adjacent ranges are always joined.
#[derive(Clone, Debug)]
pub struct Slots {
    free: BTreeMap<u32, u32>,
    available: u32,
}

impl Slots {
    /// All `capacity` slots are free.
    pub fn new(capacity: u32) -> Self {
        let mut free = BTreeMap::new();
        if capacity > 0 {
            free.insert(0, capacity);
        }
        Self { free, available: capacity }
    }

    /// Takes the first range that is long enough, if any.
    pub fn allocate(&mut self, length: u32) -> Option<u32> {
        let (&base, &room) = self.free.iter().find(|&(_, &room)| room >= length)?;
        self.free.remove(&base);
        if room > length {
            self.free.insert(base + length, room - length);
        }
        self.available -= length;
        Some(base)
    }

    /// Takes exactly this range, as found in the kernel at start; returns false if it is not free.
    pub fn claim(&mut self, base: u32, length: u32) -> bool {
        let Some((&start, &room)) = self.free.range(..=base).next_back() else { return false };
        let (Some(end), Some(free_end)) = (base.checked_add(length), start.checked_add(room))
        else {
            return false;
        };
        if end > free_end {
            return false;
        }
        self.free.remove(&start);
        if base > start {
            self.free.insert(start, base - start);
        }
        if free_end > end {
            self.free.insert(end, free_end - end);
        }
        self.available -= length;
        true
    }

    /// Returns a range to the free ones.
    pub fn release(&mut self, mut base: u32, mut length: u32) {
        self.available += length;
        if let Some((&before, &room)) = self.free.range(..base).next_back()
            && before + room == base
        {
            self.free.remove(&before);
            base = before;
            length += room;
        }
        if let Some(room) = self.free.remove(&(base + length)) {
            length += room;
        }
        self.free.insert(base, length);
    }

    /// Number of free slots.
    pub const fn available(&self) -> u32 {
        self.available
    }

    /// Each free slot, in order.
    pub fn each(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.free.iter().flat_map(|(&base, &room)| base..base + room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_that_is_taken_or_out_of_bounds_cannot_be_claimed() {
        let mut slots = Slots::new(20);
        assert!(slots.claim(5, 10));
        assert!(!slots.claim(14, 2));
        assert!(!slots.claim(18, 5));
        assert!(!slots.claim(u32::MAX, 2));
        assert!(slots.claim(15, 5));
        assert_eq!(slots.available(), 5);
    }

    proptest! {
        #[test]
        fn no_slot_is_ever_given_twice_and_what_is_released_joins_its_neighbours(lengths in prop::collection::vec((1u32..40, any::<bool>()), 1..60)) {
            let mut slots = Slots::new(500);
            let mut held: Vec<(u32, u32)> = Vec::new();
            for (length, release) in lengths {
                if release && !held.is_empty() {
                    let (base, length) = held.remove(length as usize % held.len());
                    slots.release(base, length);
                } else if let Some(base) = slots.allocate(length) {
                    for &(other, room) in &held {
                        prop_assert!(base + length <= other || other + room <= base);
                    }
                    prop_assert!(base + length <= 500);
                    held.push((base, length));
                }
                let used: u32 = held.iter().map(|&(_, length)| length).sum();
                prop_assert_eq!(slots.available(), 500 - used);
                prop_assert_eq!(slots.each().count(), 500 - used as usize);
            }
            held.iter().for_each(|&(base, length)| slots.release(base, length));
            prop_assert_eq!(slots.allocate(500), Some(0));
        }
    }
}

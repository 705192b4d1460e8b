//! Rows of endpoints for weights: an endpoint that stands in a row several times is chosen that much
//! more often. So the programs choose as they always do, and know nothing of weights.
//!
//! A row has two ranges, and a share of the connections goes to the second one
//! ([`Selection`](topo_lb_common::selection::Selection)). This share is exact to 0.005 %, so two parts need no
//! repetition at all: each has a range of its own. Of more parts, those with the most for each endpoint
//! are in the first range, and the others in the second; where to cut is what takes the fewest slots.
//! Within a range, all endpoints of a part stand equally often, and no part's share of all connections is
//! off by more than 0.005 % for each ten slots of the range, by more than 0.5 %, or by more than an eighth of
//! itself.
//!
//! A row has at most [`MOST`] slots, or [`MOST_EACH`] for each endpoint. If that is too little, shares may be
//! off by more than an eighth. If it is still too little, the parts' shares are exact, and some endpoints
//! of a part stand once more than others, or never.
//!
//! Pure, and the same on all nodes. A connection chooses at random, so none depends on an endpoint's
//! place, and only those of an endpoint that leaves are affected.

use crate::topology::spill::Share;
use crate::topology::{Chosen, Part};

/// Slots that a Service port may take in one family, however few endpoints it has.
pub const MOST: u64 = 1_000;
/// Slots that it may take for each endpoint, if that is more.
pub const MOST_EACH: u64 = 16;

/// What the record says of a weighted Service port.
#[derive(Debug, PartialEq, Eq)]
pub struct Rows {
    /// The first range.
    pub first: Vec<Chosen>,
    /// The second range.
    pub second: Vec<Chosen>,
    /// The second range's share of new connections, in parts of `selection::SPILL_ONE`.
    pub share: u16,
}

/// A part's weight, and how many endpoints it has.
#[derive(Clone, Copy)]
struct Size {
    weight: u64,
    endpoints: u64,
}

/// The rows of `parts`, of which each has a weight and endpoints.
pub fn rows(parts: &[Part]) -> Rows {
    let size =
        |part: &&Part| Size { weight: part.weight.into(), endpoints: part.endpoints.len() as u64 };
    let mut parts: Vec<&Part> = parts.iter().collect();
    parts.sort_by(|a, b| {
        let (a, b) = (size(a), size(b));
        (b.weight * a.endpoints).cmp(&(a.weight * b.endpoints))
    });
    let sizes: Vec<Size> = parts.iter().map(size).collect();
    let (cut, slots) = divide(&sizes);
    let row = |range: std::ops::Range<usize>| {
        let with = parts[range.clone()].iter().zip(&slots[range]);
        with.flat_map(|(part, &slots)| part.endpoints.iter().cycle().take(slots as usize).copied())
            .collect()
    };
    let share = Share::of(weight(&sizes[cut..]), weight(&sizes));
    Rows { first: row(0..cut), second: row(cut..parts.len()), share: share.parts() }
}

fn weight(sizes: &[Size]) -> u64 {
    sizes.iter().map(|size| size.weight).sum()
}

fn endpoints(sizes: &[Size]) -> u64 {
    sizes.iter().map(|size| size.endpoints).sum()
}

/// How many parts are in the first range, and the slots of each part. The parts are sorted, the ones with
/// the most weight for each endpoint first.
fn divide(sizes: &[Size]) -> (usize, Vec<u64>) {
    let most = MOST.max(MOST_EACH * endpoints(sizes)).min(u16::MAX.into());
    let near = [8, 0].into_iter().find_map(|fraction| cut(sizes, most, fraction));
    near.unwrap_or_else(|| (sizes.len(), cut_short(sizes, most)))
}

/// The same with at most `most` slots, if no share need be off by more than 1 ÷ `fraction` of itself.
fn cut(sizes: &[Size], most: u64, fraction: u64) -> Option<(usize, Vec<u64>)> {
    let all = weight(sizes);
    let mut best: Option<(usize, Vec<u64>)> = None;
    for cut in 1..=sizes.len() {
        // Of two with the same slots, one range is better: the last one.
        let least = best.as_ref().map(|(_, slots)| slots.iter().sum::<u64>());
        let most = least.map_or(most, |least| least - u64::from(cut < sizes.len()));
        let (first, second) = sizes.split_at(cut);
        let room = most.saturating_sub(endpoints(second));
        let Some(mut slots) = range(first, all, room, fraction) else { continue };
        let room = most - slots.iter().sum::<u64>();
        let Some(rest) = range(second, all, room, fraction) else { continue };
        slots.extend(rest);
        best = Some((cut, slots));
    }
    best
}

/// The slots of each part of a range, at most `most` in all; `None` if so few are not exact enough.
/// `all`: the weight of both ranges; `fraction` as in [`cut`].
fn range(sizes: &[Size], all: u64, most: u64, fraction: u64) -> Option<Vec<u64>> {
    let own = weight(sizes);
    let mut wanted = endpoints(sizes);
    while wanted <= most {
        let slots = |size: &Size| {
            let unit = own * size.endpoints;
            let each = (2 * wanted * size.weight + unit) / (2 * unit).max(1);
            each.max(1) * size.endpoints
        };
        let slots: Vec<u64> = sizes.iter().map(slots).collect();
        let sum: u64 = slots.iter().sum();
        let is_near = |(size, &slots): (&Size, &u64)| {
            let off = (slots * own).abs_diff(size.weight * sum);
            // off ÷ (sum × all) is how much the part's share is off.
            off * 1_000_000 <= 5 * sum.min(MOST) * sum * all && off * fraction <= size.weight * sum
        };
        if sum <= most && sizes.iter().zip(&slots).all(is_near) {
            return Some(slots);
        }
        wanted += (wanted / 64).max(1);
    }
    None
}

/// `most` slots or a few more, in proportion to the weights, by largest remainders.
fn cut_short(sizes: &[Size], most: u64) -> Vec<u64> {
    let all = weight(sizes);
    let mut slots: Vec<u64> = sizes.iter().map(|size| most * size.weight / all).collect();
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(most * sizes[at].weight % all));
    let rest = most - slots.iter().sum::<u64>();
    order.iter().take(rest as usize).for_each(|&at| slots[at] += 1);
    slots.iter_mut().for_each(|slots| *slots = (*slots).max(1));
    slots
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;

    use proptest::prelude::*;
    use topo_lb_common::backend::Locality;
    use topo_lb_common::selection::SPILL_ONE;

    use super::*;

    /// Parts with these weights and numbers of endpoints.
    fn parts(sizes: &[(u16, u16)]) -> Vec<Part> {
        let part = |(index, &(weight, endpoints)): (usize, &(u16, u16))| {
            let at = |port| SocketAddr::from(([10, 0, 0, index as u8], port));
            let endpoints = (1..=endpoints).map(|port| Chosen::new(at(port), Locality::Zone));
            Part { weight, endpoints: endpoints.collect() }
        };
        sizes.iter().enumerate().map(part).collect()
    }

    /// The probability of each endpoint, as `Selection` chooses.
    fn chances(rows: &Rows) -> BTreeMap<SocketAddr, f64> {
        let second = match rows.second.len() {
            0 => 0.0,
            _ => f64::from(rows.share) / f64::from(SPILL_ONE),
        };
        let mut chances = BTreeMap::new();
        for (row, share) in [(&rows.first, 1.0 - second), (&rows.second, second)] {
            for one in row {
                *chances.entry(one.address()).or_default() += share / row.len() as f64;
            }
        }
        chances
    }

    /// The largest difference between a part's share and its due, and the least that an endpoint gets of its
    /// due, apart from the 0.005 % by which the ranges' share is rounded.
    fn off(sizes: &[(u16, u16)]) -> (f64, f64) {
        let parts = parts(sizes);
        let chances = chances(&rows(&parts));
        let all: f64 = parts.iter().map(|part| f64::from(part.weight)).sum();
        let chance = |one: &Chosen| chances.get(&one.address()).copied().unwrap_or_default();
        let (mut most, mut least) = (0.0f64, f64::MAX);
        for part in &parts {
            let due = f64::from(part.weight) / all;
            let own: f64 = part.endpoints.iter().map(chance).sum();
            most = most.max((own - due).abs());
            let each = due / part.endpoints.len() as f64;
            let rounded = 0.000_05 / part.endpoints.len() as f64;
            let of_due = |one| (chance(one) + rounded) / each;
            part.endpoints.iter().for_each(|one| least = least.min(of_due(one)));
        }
        (most, least)
    }

    fn slots(sizes: &[(u16, u16)]) -> (usize, usize) {
        let rows = rows(&parts(sizes));
        (rows.first.len(), rows.second.len())
    }

    #[test]
    fn two_parts_repeat_nothing() {
        assert_eq!(slots(&[(80, 3), (20, 2)]), (3, 2));
        assert_eq!(slots(&[(1, 1_000), (999, 1)]), (1, 1_000));
        assert_eq!(rows(&parts(&[(80, 3), (20, 2)])).share, 2_000);
        assert_eq!(rows(&parts(&[(20, 2), (80, 3)])).share, 2_000, "the lighter part is second");
    }

    #[test]
    fn parts_with_equal_endpoints_are_one_plain_row() {
        assert_eq!(slots(&[(7, 3)]), (3, 0));
        assert_eq!(slots(&[(60, 3), (40, 2)]), (5, 0));
        assert_eq!(slots(&[(10, 1), (10, 1), (10, 1)]), (3, 0));
    }

    #[test]
    fn three_tiers_take_few_slots_and_are_exact() {
        // The first range has one part; in the second, endpoints stand 3 : 1 and 6 : 1.
        assert_eq!(slots(&[(80, 1), (15, 1), (5, 1)]), (1, 4));
        assert_eq!(slots(&[(80, 1), (15, 3), (5, 6)]), (1, 24));
        // The last part has the second range; 80 ÷ 1 is 48 times 15 ÷ 9.
        let large = [(80, 1), (15, 9), (5, 190)];
        assert_eq!(slots(&large), (48 + 9, 190));
        assert!(off(&large).0 < 0.0001, "{:?}", off(&large));
    }

    #[test]
    fn a_row_never_exceeds_its_bound() {
        for sizes in [
            &[(1, 500), (33, 500), (33, 30), (933, 1)][..],
            &[(1, 900), (30, 90), (300, 900), (1_000, 9)],
            &[(1, 900), (1_000, 900), (30, 900), (900, 900), (3, 900), (10, 900)],
            &[(1, 60_000), (1_000, 60_000), (30, 5)],
        ] {
            let (first, second) = slots(sizes);
            let endpoints: u64 = sizes.iter().map(|&(_, endpoints)| u64::from(endpoints)).sum();
            let most = MOST.max(MOST_EACH * endpoints).min(u16::MAX.into());
            assert!((first + second) as u64 <= most, "{sizes:?}: {first} + {second}");
            let (off, _) = off(sizes);
            assert!(off <= 0.0052, "{sizes:?}: {off}");
        }
    }

    #[test]
    fn three_parts_of_usual_sizes_give_every_endpoint_its_due() {
        let sizes =
            || [1, 5, 15, 30, 80, 100].into_iter().flat_map(|w| [1, 2, 7, 20].map(|n| (w, n)));
        for one in sizes() {
            for two in sizes() {
                for three in sizes() {
                    let (_, least) = off(&[one, two, three]);
                    assert!(least >= 0.87, "{one:?} {two:?} {three:?}: {least}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]

        #[test]
        fn every_part_gets_its_share_of_a_row_within_its_bound(
            sizes in prop::collection::vec((1u16..=1_000, 1u16..60), 1..=16)
        ) {
            let (off, _) = off(&sizes);
            prop_assert!(off <= 0.0051, "{off}");
            let (first, second) = slots(&sizes);
            let all: u64 = sizes.iter().map(|&(_, endpoints)| u64::from(endpoints)).sum();
            prop_assert!((first + second) as u64 <= MOST.max(MOST_EACH * all));
        }
    }
}

//! `topo-lb.io/spill: auto`: the share of new connections that leaves a tier follows from how crowded it is.
//!
//! Each Node counts as one client. A tier's load is its Nodes ÷ its usable endpoints; the **mean** is that of
//! the last key with further endpoints: of all that the keys allow. Then
//!
//! `share = 1 − 1.2 × mean ÷ load`, in steps of 5 %, rounded up; nothing up to 1.2 × the mean.
//!
//! So a tier's own clients load its endpoints with at most 1.2 times the mean, which Kubernetes' own hints
//! tolerate, too (`overloadThreshold`, topologycache.go of the EndpointSlice controller). What spills goes to
//! the nearest wider tier that is itself not above the mean, else to the last. If each key's tiers lie within
//! those of the next key, no endpoint gets more than `1.2 × (keys − 1) + 1.05` times the mean.
//!
//! The share is a function of counts, which it does not change: there is nothing to oscillate, and all nodes of
//! a tier agree without a state. One Node or endpoint more moves it by about `1 ÷ count`, or one step.

use super::spill::Share;

/// Steps of a share.
const STEPS: u64 = 20;

/// Clients and endpoints of a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowd {
    /// Nodes that share the key's value; all for `*`.
    pub nodes: usize,
    /// Usable endpoints that do.
    pub endpoints: usize,
}

impl Crowd {
    /// Whether it has at most as many Nodes for each endpoint as another.
    pub(super) const fn is_at_most(self, other: Self) -> bool {
        self.nodes * other.endpoints <= other.nodes * self.endpoints
    }
}

/// How crowded the chosen tier is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crowding {
    /// The tier.
    pub own: Crowd,
    /// All that the keys allow: the mean.
    pub all: Crowd,
}

impl Crowding {
    /// The share of the tier's new connections that spills.
    #[must_use]
    pub fn share(self) -> Share {
        let product = |a: usize, b: usize| (a as u64).saturating_mul(b as u64);
        // 1.2 × mean ÷ load is `kept` ÷ `whole`.
        let kept = product(self.all.nodes, self.own.endpoints).saturating_mul(12);
        let whole = product(self.own.nodes, self.all.endpoints).saturating_mul(10);
        let spilt = whole.saturating_sub(kept).saturating_mul(STEPS).div_ceil(whole.max(1));
        Share::of(spilt.min(STEPS), STEPS)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use topo_lb_common::selection::SPILL_ONE;

    use super::*;

    fn crowding(own: (usize, usize), all: (usize, usize)) -> Crowding {
        let crowd = |(nodes, endpoints)| Crowd { nodes, endpoints };
        Crowding { own: crowd(own), all: crowd(all) }
    }

    #[test]
    fn what_is_beyond_a_fifth_above_the_mean_spills_in_steps_of_5_percent() {
        for (own, all, percent) in [
            // Half of the clients and a tenth of the endpoints: 1 − 1.2 × 1 ÷ 5.
            ((50, 10), (100, 100), 80),
            ((50, 50), (100, 100), 0),
            ((10, 50), (100, 100), 0),
            ((60, 50), (100, 100), 0),
            ((61, 50), (100, 100), 5),
            ((64, 50), (100, 100), 10),
            ((1, 1), (3, 9), 60),
            ((1_000, 1), (1_001, 1_000), 100),
            ((0, 0), (0, 0), 0),
            ((usize::MAX, 1), (usize::MAX, usize::MAX), 0),
        ] {
            let share = crowding(own, all).share();
            assert_eq!(share.parts(), percent * (SPILL_ONE / 100), "{own:?} of {all:?}");
        }
    }

    proptest! {
        #[test]
        fn one_node_or_endpoint_more_moves_the_share_little(
            nodes in 1_usize..500, endpoints in 1_usize..500,
            others in 0_usize..500, elsewhere in 1_usize..500,
            (more, on) in (0_usize..2, 0_usize..2),
        ) {
            let of = |nodes, endpoints| {
                let all = (nodes + others, endpoints + elsewhere);
                i32::from(crowding((nodes, endpoints), all).share().parts())
            };
            let (before, after) = (of(nodes, endpoints), of(nodes + more, endpoints + on));
            let step = i32::from(SPILL_ONE / 20);
            let part = |count: usize| i32::from(SPILL_ONE) * 6 / 5 / i32::try_from(count).unwrap();
            let bound = step + part(nodes) + part(endpoints);
            prop_assert!((before - after).abs() <= bound, "{before} {after}, not within {bound}");
        }

        #[test]
        fn more_clients_spill_more_and_more_endpoints_less(
            nodes in 1_usize..500, endpoints in 1_usize..500,
            others in 0_usize..500, elsewhere in 1_usize..500,
        ) {
            let of = |nodes, endpoints, others, elsewhere| {
                crowding((nodes, endpoints), (nodes + others, endpoints + elsewhere)).share().parts()
            };
            let share = of(nodes, endpoints, others, elsewhere);
            prop_assert!(of(nodes + 1, endpoints, others, elsewhere) >= share);
            prop_assert!(of(nodes, endpoints + 1, others, elsewhere) <= share);
            prop_assert!(of(nodes, endpoints, others + 1, elsewhere) <= share);
            prop_assert!(of(nodes, endpoints, others, elsewhere + 1) >= share);
        }
    }
}

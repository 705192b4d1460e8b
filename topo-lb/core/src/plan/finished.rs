//! A plan: its steps in the order in which they must happen, and who lacks room.

use std::collections::BTreeMap;

use super::capacity::Lack;
use super::step::Step;
use super::waiting::Wait;
use crate::cluster::ServiceId;

/// The steps, and the Services that lack room.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In the order of execution.
    pub steps: Vec<Step>,
    /// Planned Services that lack room in the maps: of what, and what their connections do.
    pub unprogrammed: BTreeMap<ServiceId, Lack>,
    /// The same Services without those that are too large, and for what each waits.
    pub waiting: BTreeMap<ServiceId, Wait>,
    /// Whether Services give up room for others.
    pub gives_up: bool,
}

impl Plan {
    /// Splits off the last wait for a grace period and the records that it frees, if nothing else
    /// waits for it. These steps matter only to later plans, and may be carried out after that time.
    pub fn take_frees(&mut self) -> Vec<Step> {
        let Some(grace) = self.steps.iter().rposition(|step| *step == Step::Grace) else {
            return Vec::new();
        };
        if !self.steps[grace + 1..].iter().all(|step| matches!(step, Step::Free { .. })) {
            return Vec::new();
        }
        let frees = self.steps.split_off(grace + 1);
        self.steps.truncate(grace);
        frees
    }

    /// Whether the plan frees slots, after a grace period.
    #[must_use]
    pub fn frees_slots(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Free { slots: Some(_), .. }))
    }
}

#[cfg(test)]
mod tests {
    use topo_lb_common::range::Range;

    use super::*;
    use crate::cluster::Family;

    #[test]
    fn records_alone_may_be_freed_later() {
        let free = |record| Step::Free { family: Family::V4, record, slots: None };
        let first = Step::SetRange(Range::EMPTY);
        for (steps, rest, frees) in [
            (vec![first.clone(), Step::Grace, free(8), free(16)], 1, vec![free(8), free(16)]),
            (vec![first.clone()], 1, vec![]),
            (vec![Step::Grace, free(8), first, Step::Grace, free(16)], 3, vec![free(16)]),
            (vec![Step::Grace, free(8), Step::Unname(3)], 3, vec![]),
        ] {
            let mut plan = Plan { steps: steps.clone(), ..Plan::default() };
            assert_eq!(plan.take_frees(), frees);
            assert_eq!(plan.steps, steps[..rest]);
        }
    }
}

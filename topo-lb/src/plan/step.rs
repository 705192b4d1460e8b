//! One write each, in the order in which they must happen.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use topo_lb_common::range::Range;

use super::capacity::Lack;
use super::entry::Entry;
use crate::cluster::{Family, Frontend, ServiceId};
use crate::topology::Chosen;

/// One thing to do to the maps.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Say where frontends can be.
    SetRange(Range),
    /// Give an index to a Service port; its counters start at zero.
    Name {
        /// The index.
        index: u32,
        /// `namespace/name:port`.
        name: Arc<str>,
    },
    /// Write endpoints into slots that no Service refers to.
    FillSlots {
        /// Whose slots.
        family: Family,
        /// The first.
        base: u32,
        /// What goes there.
        row: Arc<[Chosen]>,
    },
    /// List an endpoint as a Service's, or change whether it is chosen.
    SetMember {
        /// The Service port.
        index: u32,
        /// The endpoint.
        endpoint: SocketAddr,
        /// Whether this node's new connections may use it.
        chosen: bool,
    },
    /// Make an entry what a frontend's new connections do: the one publishing write.
    Publish {
        /// Whose.
        frontend: Frontend,
        /// What they do.
        entry: Entry,
        /// Where its row is, if it is not inline.
        slot_base: Option<u32>,
    },
    /// Leave a frontend alone from now on.
    Withdraw(Frontend),
    /// Take an endpoint off a Service's list.
    RemoveMember {
        /// The Service port.
        index: u32,
        /// The endpoint.
        endpoint: SocketAddr,
    },
    /// Wait until no program can still be reading what was replaced.
    Grace,
    /// Slots that no program reads any more can be filled again.
    FreeSlots {
        /// Whose slots.
        family: Family,
        /// The first.
        base: u32,
        /// How many.
        length: u32,
    },
    /// Take an index back.
    Unname(u32),
}

/// What to do, and what could not be planned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// In this order.
    pub steps: Vec<Step>,
    /// Services that lack room in the maps, of what, and what their connections do.
    pub unprogrammed: BTreeMap<ServiceId, Lack>,
}

impl Plan {
    /// Takes out the wait for a grace period and the slots that are free after it, if nothing else
    /// waits for it: these steps only bear on later plans, and can be done when the time has passed.
    pub fn take_frees(&mut self) -> Vec<Step> {
        let Some(grace) = self.steps.iter().position(|step| *step == Step::Grace) else {
            return Vec::new();
        };
        if !self.steps[grace + 1..].iter().all(|step| matches!(step, Step::FreeSlots { .. })) {
            return Vec::new();
        }
        let frees = self.steps.split_off(grace + 1);
        self.steps.truncate(grace);
        frees
    }

    /// Whether something is free afterwards that was not while it was made: what had no room may
    /// have it now.
    #[must_use]
    pub fn makes_room(&self) -> bool {
        self.steps.iter().any(|step| {
            matches!(
                step,
                Step::Withdraw(_)
                    | Step::RemoveMember { .. }
                    | Step::FreeSlots { .. }
                    | Step::Unname(_)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(steps: impl IntoIterator<Item = Step>) -> Plan {
        Plan { steps: steps.into_iter().collect(), unprogrammed: BTreeMap::new() }
    }

    fn free(base: u32) -> Step {
        Step::FreeSlots { family: Family::V4, base, length: 8 }
    }

    #[test]
    fn slots_alone_may_be_freed_later() {
        let first = Step::SetRange(Range::EMPTY);
        let mut plan = plan([first.clone(), Step::Grace, free(8), free(16)]);
        assert_eq!(plan.take_frees(), [free(8), free(16)]);
        assert_eq!(plan.steps, [first]);
        assert_eq!(plan.take_frees(), []);
    }

    #[test]
    fn what_else_waits_for_a_grace_period_keeps_it() {
        let steps = [Step::Grace, free(8), Step::Unname(3)];
        let mut plan = plan(steps.clone());
        assert_eq!(plan.take_frees(), []);
        assert_eq!(plan.steps, steps);
    }
}

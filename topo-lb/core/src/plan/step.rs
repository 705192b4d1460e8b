//! The steps of a plan: one write each, in the order in which they must happen.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use topo_lb_common::range::Range;

use super::capacity::Lack;
use super::entry::Entry;
use super::waiting::Wait;
use crate::cluster::{Family, Frontend, ServiceId};
use crate::topology::Chosen;

/// One change of the maps.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Set the range in which frontends are.
    SetRange(Range),
    /// Give an index to a Service port; its counters start at zero.
    Name {
        /// The index.
        index: u32,
        /// `namespace/name:port`.
        name: Arc<str>,
    },
    /// Write endpoints to slots that no Service refers to.
    FillSlots {
        /// The family of the slots.
        family: Family,
        /// The first slot.
        base: u32,
        /// The endpoints.
        row: Arc<[Chosen]>,
    },
    /// List an endpoint as a Service's member, or change whether it is chosen.
    SetMember {
        /// The Service port.
        index: u32,
        /// The endpoint.
        endpoint: SocketAddr,
        /// Whether this node's new connections may use it.
        chosen: bool,
    },
    /// Publish the entry of a frontend, for new connections.
    Publish {
        /// The frontend.
        frontend: Frontend,
        /// Its entry.
        entry: Entry,
        /// First slot of its row, if that is not inline.
        slot_base: Option<u32>,
        /// The record to write, which no program can read yet.
        record: u32,
    },
    /// Remove a frontend: its connections are left untouched from now on.
    Withdraw(Frontend),
    /// Remove an endpoint from a Service's members.
    RemoveMember {
        /// The Service port.
        index: u32,
        /// The endpoint.
        endpoint: SocketAddr,
    },
    /// Wait until no running program can still read what was replaced.
    Grace,
    /// Release a record that no program reads any more, and its slots if no other record refers to them.
    Free {
        /// The family of both.
        family: Family,
        /// The record.
        record: u32,
        /// The first slot, and their number; `None` if the row was inline.
        slots: Option<(u32, u32)>,
    },
    /// Free an index.
    Unname(u32),
}

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
    use super::*;

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

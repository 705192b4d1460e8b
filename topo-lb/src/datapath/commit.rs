//! The one executor of plans.

use super::store::{Store, StoreError};
use crate::plan::{Installed, Plan, Step};

/// Does the steps in their order, and notes each in `installed` as soon as it is done. At the
/// first that fails it stops: what was done is noted, every frontend is wholly as it was or wholly
/// as planned, and the caller plans anew.
pub fn commit(
    plan: &Plan,
    store: &mut impl Store,
    installed: &mut Installed,
) -> Result<(), StoreError> {
    if plan.steps.is_empty() {
        return Ok(());
    }
    let result = perform_all(plan, store, installed);
    // Also after a plan that stopped: some of it was done.
    result.and(store.revise())
}

fn perform_all(
    plan: &Plan,
    store: &mut impl Store,
    installed: &mut Installed,
) -> Result<(), StoreError> {
    for step in &plan.steps {
        perform(step, store)?;
        installed.record(step);
    }
    Ok(())
}

fn perform(step: &Step, store: &mut impl Store) -> Result<(), StoreError> {
    match step {
        Step::SetRange(range) => store.set_range(*range),
        Step::Name { index, name } => store.name(*index, name),
        Step::FillSlots { family, base, row } => store.fill_slots(*family, *base, row),
        Step::SetMember { index, endpoint, chosen } => store.set_member(*index, *endpoint, *chosen),
        Step::Publish { frontend, entry, slot_base } => store.publish(frontend, entry, *slot_base),
        Step::Withdraw(frontend) => store.withdraw(frontend),
        Step::RemoveMember { index, endpoint } => store.remove_member(*index, *endpoint),
        Step::Grace => store.grace(),
        // Only the books change: the slots are filled again by a later plan.
        Step::FreeSlots { .. } => Ok(()),
        Step::Unname(index) => store.unname(*index),
    }
}

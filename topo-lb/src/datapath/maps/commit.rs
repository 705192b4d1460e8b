//! The one executor of plans.

use super::error::StoreError;
use super::store::Store;
use crate::plan::{Installed, Plan, Step};

/// Does the steps in their order, and notes each in `installed` as soon as it is done. At the
/// first that fails it stops: what was done is noted, every frontend is wholly as it was or wholly
/// as planned, and the caller plans anew.
pub fn commit(
    plan: &Plan,
    store: &mut impl Store,
    installed: &mut Installed,
) -> Result<(), StoreError> {
    let grace = plan.steps.iter().position(|step| *step == Step::Grace);
    let (visible, freeing) = plan.steps.split_at(grace.unwrap_or(plan.steps.len()));
    if !visible.is_empty() {
        let result = perform_all(visible, store, installed);
        // Before the wait, which takes milliseconds. Also after a plan that stopped: some of it was
        // done.
        result.and(store.revise())?;
    }
    perform_all(freeing, store, installed)
}

/// Reads what is there, for whoever begins with it: an agent that starts, or one whose plan failed.
///
/// The last writer may have stopped right after a write: connections may not have looked at it yet,
/// and programs may still read what it replaced.
pub fn take_over(store: &mut impl Store) -> Result<Installed, StoreError> {
    store.revise()?;
    store.write(&Step::Grace)?;
    store.installed()
}

fn perform_all(
    steps: &[Step],
    store: &mut impl Store,
    installed: &mut Installed,
) -> Result<(), StoreError> {
    for step in steps {
        store.write(step)?;
        installed.record(step);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datapath::maps::memory::MemoryStore;
    use crate::plan::Capacity;

    #[test]
    fn whoever_begins_has_connections_look_at_what_was_written_last() {
        let mut store = MemoryStore::new(Capacity::default());
        let endpoint = ([10, 244, 1, 3], 9376).into();
        store.write(&Step::RemoveMember { index: 1, endpoint }).unwrap();
        assert!(store.is_unrevised);
        take_over(&mut store).unwrap();
        assert!(!store.is_unrevised);
    }
}

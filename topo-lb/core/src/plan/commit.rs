//! The only executor of plans.

use super::store::Store;
use super::{Installed, Plan, Step};

/// Carries out the steps in order, and records each in `installed`. Stops at the first failure:
/// every frontend is then either as before or as planned, and the caller must plan again.
pub fn commit<S: Store>(
    plan: &Plan,
    store: &mut S,
    installed: &mut Installed,
) -> Result<(), S::Error> {
    for part in plan.steps.split_inclusive(|step| *step == Step::Grace) {
        let (visible, wait) = match part {
            [visible @ .., Step::Grace] => (visible, &part[visible.len()..]),
            visible => (visible, &[][..]),
        };
        if visible.iter().any(concerns_connections) {
            let result = perform(visible, store, installed);
            // After the steps: what checks its endpoint by this revision must find them done. Before
            // the wait, which takes milliseconds. Also after a failure: some steps were done.
            result.and(store.revise())?;
        } else {
            perform(visible, store, installed)?;
        }
        perform(wait, store, installed)?;
    }
    Ok(())
}

/// Whether tc connections and UDP flows may have to check their endpoints after this step.
const fn concerns_connections(step: &Step) -> bool {
    use Step::{Free, RemoveSource, SetSource, Unname};
    !matches!(step, Free { .. } | Unname(_) | SetSource(_) | RemoveSource(_))
}

/// Reads what is installed, at the start and after a failed plan.
///
/// The last writer may have stopped right after a write: tc connections and UDP flows may not have
/// checked their endpoints since, and programs may still read what the write replaced.
pub fn take_over<S: Store>(store: &mut S) -> Result<Installed, S::Error> {
    store.revise()?;
    store.write(&[Step::Grace])?;
    store.installed()
}

/// Carries out steps in order, and records each in `installed`. Stops at the first failure.
pub fn perform<S: Store>(
    mut steps: &[Step],
    store: &mut S,
    installed: &mut Installed,
) -> Result<(), S::Error> {
    while !steps.is_empty() {
        let (done, rest) = steps.split_at(store.write(steps)?);
        done.iter().for_each(|step| installed.record(step));
        steps = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Capacity;
    use crate::plan::memory::MemoryStore;

    #[test]
    fn taking_over_makes_connections_check_their_endpoints() {
        let mut store = MemoryStore::new(Capacity::default());
        let endpoint = ([10, 244, 1, 3], 9376).into();
        store.write(&[Step::RemoveMember { index: 1, endpoint }]).unwrap();
        assert!(store.is_unrevised);
        take_over(&mut store).unwrap();
        assert!(!store.is_unrevised);
    }
}

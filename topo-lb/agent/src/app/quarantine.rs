//! Records and slots that programs may still read. A thread waits for the grace period: it takes as
//! long as several changes, and publishing need not wait for it.

use std::thread::{self, JoinHandle};

use topo_lb_core::plan::Step;
use topo_lb_kernel::datapath::host::grace;
use topo_lb_kernel::datapath::maps::error::StoreError;

/// A running wait for a grace period.
type Grace = JoinHandle<Result<(), StoreError>>;

/// Steps to carry out once no program reads what they free any more.
#[derive(Default)]
pub(super) struct Quarantine {
    /// A running grace period, and what was replaced before it began.
    passing: Option<(Grace, Vec<Step>)>,
    /// What was replaced since then.
    later: Vec<Step>,
}

impl Quarantine {
    pub(super) fn is_empty(&self) -> bool {
        self.passing.is_none() && self.later.is_empty()
    }

    /// Adds what was replaced just now.
    pub(super) fn add(&mut self, frees: Vec<Step>) {
        self.later.extend(frees);
        self.begin();
    }

    fn begin(&mut self) {
        if self.passing.is_none() && !self.later.is_empty() {
            let grace = thread::spawn(|| grace::wait().map_err(StoreError::Grace));
            self.passing = Some((grace, std::mem::take(&mut self.later)));
        }
    }

    /// Returns the steps that are due, without waiting.
    ///
    /// # Errors
    /// A grace period failed; its steps wait for another one.
    pub(super) fn released(&mut self) -> Result<Vec<Step>, StoreError> {
        match &self.passing {
            Some((grace, _)) if grace.is_finished() => self.pass(),
            _ => Ok(Vec::new()),
        }
    }

    /// Waits for all steps and returns them.
    ///
    /// # Errors
    /// As [`released`](Self::released).
    pub(super) fn wait(&mut self) -> Result<Vec<Step>, StoreError> {
        let mut all = self.pass()?;
        all.extend(self.pass()?);
        Ok(all)
    }

    /// Waits for the running grace period, and begins the next.
    fn pass(&mut self) -> Result<Vec<Step>, StoreError> {
        let Some((grace, frees)) = self.passing.take() else {
            return Ok(Vec::new());
        };
        match grace.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)) {
            Ok(()) => {
                self.begin();
                Ok(frees)
            }
            Err(error) => {
                self.later.splice(..0, frees);
                self.begin();
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use topo_lb_core::cluster::Family;

    fn free(record: u32) -> Step {
        Step::Free { family: Family::V4, record, slots: None }
    }

    #[test]
    fn all_comes_out_once_and_in_order() {
        let mut quarantine = Quarantine::default();
        quarantine.add(vec![free(0)]);
        quarantine.add(vec![free(8)]);
        quarantine.add(vec![free(16)]);
        assert!(!quarantine.is_empty());
        assert_eq!(quarantine.wait().unwrap(), [free(0), free(8), free(16)]);
        assert!(quarantine.is_empty());
        assert_eq!(quarantine.wait().unwrap(), []);
        assert_eq!(quarantine.released().unwrap(), []);
    }

    #[test]
    fn what_was_replaced_during_a_grace_period_has_another_one() {
        let mut quarantine = Quarantine::default();
        quarantine.add(vec![free(0)]);
        quarantine.add(vec![free(8)]);
        let mut first = Vec::new();
        while first.is_empty() {
            first = quarantine.released().unwrap();
        }
        assert_eq!(first, [free(0)]);
        assert!(!quarantine.is_empty());
        assert_eq!(quarantine.wait().unwrap(), [free(8)]);
    }
}

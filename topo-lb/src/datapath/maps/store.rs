//! The interface of the maps to the executor of plans.

use super::error::StoreError;
use crate::plan::{Installed, Step};

/// The kernel's maps, or a test's maps in memory.
pub trait Store {
    /// Carries out a step. Removing a missing entry is no error; naming an index zeroes counters.
    ///
    /// # Errors
    /// The write fails, and changes nothing.
    fn write(&mut self, step: &Step) -> Result<(), StoreError>;
    /// Makes tc connections and UDP flows check their endpoints again.
    ///
    /// # Errors
    /// The write fails, and changes nothing.
    fn revise(&mut self) -> Result<(), StoreError>;
    /// Reads the content of the maps.
    ///
    /// # Errors
    /// A map cannot be read.
    fn installed(&mut self) -> Result<Installed, StoreError>;
}

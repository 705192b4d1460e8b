//! What the executor needs of the maps.

use super::error::StoreError;
use crate::plan::{Installed, Step};

/// The maps: the kernel's, or a test's in memory.
pub trait Store {
    /// Carries out one step of a plan. It removes what is not there without an error, and sets the
    /// counters of an index that it names to zero.
    ///
    /// # Errors
    /// The maps do not take it; nothing is written then.
    fn write(&mut self, step: &Step) -> Result<(), StoreError>;
    /// Lets tc's connections look at their endpoints anew.
    ///
    /// # Errors
    /// The maps do not take it.
    fn revise(&mut self) -> Result<(), StoreError>;
    /// Reads what is there.
    ///
    /// # Errors
    /// A map cannot be read.
    fn installed(&mut self) -> Result<Installed, StoreError>;
}

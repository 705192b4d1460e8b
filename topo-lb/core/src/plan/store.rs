//! The interface of the maps to the executor of plans.

use super::{Installed, Step};

/// The kernel's maps, or a test's maps in memory.
pub trait Store {
    /// A failed write or read.
    type Error;

    /// Carries out the first of these steps, and as many after it as one call to the kernel can.
    /// Returns their number. Removing a missing entry is no error; naming an index zeroes counters.
    ///
    /// # Errors
    /// The first step fails, and changes nothing.
    fn write(&mut self, steps: &[Step]) -> Result<usize, Self::Error>;
    /// Makes tc connections and UDP flows check their endpoints again.
    ///
    /// # Errors
    /// The write fails, and changes nothing.
    fn revise(&mut self) -> Result<(), Self::Error>;
    /// Reads the content of the maps.
    ///
    /// # Errors
    /// A map cannot be read.
    fn installed(&mut self) -> Result<Installed, Self::Error>;
}

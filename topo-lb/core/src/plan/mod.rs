//! Computes the steps from what is installed to what is desired. Pure.
//!
//! Works with addresses and endpoints of either family; the datapath knows the layout of the maps.

pub mod appeared;
pub mod apportionment;
pub mod capacity;
pub mod commit;
pub mod desired;
pub mod diff;
mod draft;
pub mod entry;
mod extent;
pub mod finished;
pub mod gone;
pub mod indexes;
pub mod installed;
#[cfg(test)]
pub(crate) mod memory;
pub mod ration;
pub mod share;
pub mod slots;
pub mod sources;
pub mod step;
pub mod store;
#[cfg(test)]
mod tests;
pub mod waiting;

pub use capacity::{Capacity, Lack, Meanwhile, Shortage, WhenFull};
pub use desired::Desired;
pub use entry::Entry;
pub use finished::Plan;
pub use gone::Gone;
pub use installed::{Installed, Placed};
pub use ration::Ration;
pub use step::Step;

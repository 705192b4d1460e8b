//! From what is wanted and what is installed to the steps between them. Pure.
//!
//! Everything here speaks of addresses and endpoints, of either family; how they are laid out in
//! the maps is the datapath's business.

pub mod capacity;
pub mod desired;
pub mod diff;
mod draft;
pub mod entry;
#[cfg(test)]
mod fairness;
pub mod gone;
pub mod indexes;
pub mod installed;
#[cfg(test)]
mod proof;
pub mod ration;
pub mod share;
pub mod slots;
pub mod step;

pub use capacity::{Capacity, Lack, Meanwhile, Shortage, WhenFull};
pub use desired::Desired;
pub use entry::Entry;
pub use gone::Gone;
pub use installed::Installed;
pub use ration::Ration;
pub use step::{Plan, Step};

//! Computes the steps from what is installed to what is desired. Pure. The door is `diff`, which plans, and
//! `commit`, which has a store carry a plan out.
//!
//! Works with addresses and endpoints of either family; the datapath knows the layout of the maps.
//!
//! | file | what it decides |
//! |---|---|
//! | `desired` | what every frontend should do, and which Service gets one that two claim |
//! | `installed` | what the maps hold |
//! | `diff`, `draft` | which writes lead from one to the other, in which phase, and whether they have room |
//! | `step`, `commit`, `store` | the writes, in their order, and the interface of the maps that takes them |
//! | `entry`, `member`, `apportionment` | what a frontend's record and an endpoint's entry say, and the row of endpoints for weights |
//! | `maglev` | its table for a consistent choice |
//! | `slots`, `indexes` | which slots of an array and which index a Service port gets |
//! | `capacity`, `extent` | how much the maps hold, and what happens to a Service that does not fit |
//! | `share`, `ration` | **who gets how much when not everything fits** |
//! | `waiting` | which Services wait for room, and when to plan them again |
//! | `sources` | who may dial load balancer IPs with source ranges |
//! | `appeared`, `gone` | which sockets reach nobody, or an endpoint that has gone |

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
pub mod maglev;
pub mod member;
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
pub use member::Member;
pub use ration::Ration;
pub use step::Step;

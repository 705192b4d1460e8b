//! Endpoints that this node leaves out, because its connects to them failed (`topo-lb.io/ejection`).
//!
//! The programs tell which endpoints fail, `topology::ejection` says which of them may be left out, and
//! the [`Schedule`] says until when. Then the agent [probes](probe) them, which costs no connection of a
//! client.

pub mod probe;
mod schedule;

pub use probe::Probed;
pub use schedule::{Due, Schedule};

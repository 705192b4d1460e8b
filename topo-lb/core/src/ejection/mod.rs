//! Endpoints that this node leaves out, because its connects to them failed (`topo-lb.io/ejection`).
//!
//! The programs tell which endpoints fail, `topology::ejection` says which of them may be left out, and
//! the [`Schedule`] says until when. Then the agent probes them, which costs no connection of a
//! client.

mod probed;
mod schedule;

pub use probed::Probed;
pub use schedule::{Due, Schedule};

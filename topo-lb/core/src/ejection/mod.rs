//! Endpoints that this node ejects, because its connects to them failed (`topo-lb.io/ejection`).
//!
//! The programs tell which endpoints fail, `topology::ejection` says which of them may be ejected, and
//! the [`Schedule`] says until when. Then the agent probes them, which costs no connection of a
//! client.

mod probed;
mod schedule;

pub use probed::Probed;
pub use schedule::{Due, Schedule};

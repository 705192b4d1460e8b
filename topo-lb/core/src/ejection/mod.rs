//! Endpoints that this node ejects, because its connects to them failed (`topo-lb.io/ejection`), and those
//! that are dead, as it finds while it is an island.
//!
//! The programs tell which endpoints fail, `topology::ejection` says which of them may be ejected, and
//! the [`Schedule`] says until when. Then the agent probes them, which costs no connection of a
//! client. While the API server is [silent](Silence), an [`Island`] says which endpoints to probe, and who is
//! dead.

pub mod island;
mod probed;
mod schedule;
mod silence;

pub use island::Island;
pub use probed::Probed;
pub use schedule::{Due, Schedule};
pub use silence::Silence;

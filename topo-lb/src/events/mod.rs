//! Kubernetes Events: people who look at a Service see what this node makes of it.

pub mod concern;
pub mod ledger;
pub mod publish;
pub mod rate;

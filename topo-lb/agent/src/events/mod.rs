//! Kubernetes Events at Services and Nodes.

pub mod concern;
pub mod counted;
pub mod ledger;
pub mod node;
mod object;
pub mod outbox;
pub mod publish;
pub mod written;

#[cfg(test)]
mod fleet;

//! The agent: one task that owns the state of the cluster and of the maps, and all that others see of it:
//! HTTP, metrics, Events, health checks, the status of policies, the resolver.
//!
//! It must never know how a command line is read: it is given a [`app::Config`].
//!
//! The door: [`app::run`].

pub mod admin;
pub mod agent_state;
pub mod app;
#[cfg(test)]
#[path = "../../core/src/counted.rs"]
mod counted;
pub mod dns;
mod ejection_probe;
pub mod events;
pub mod health;
pub mod metrics;
pub mod policy_status;
pub mod readiness;
pub mod serve;
pub mod state_query;
pub mod telemetry;

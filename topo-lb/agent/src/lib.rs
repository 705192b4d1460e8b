//! The agent: one task that owns the state of the cluster and of the maps, and all that others see of it:
//! HTTP, metrics, Events, health checks, the status of policies, the resolver.
//!
//! It must never know how a command line is read, nor what a command prints: it is given an
//! [`app::Config`]. What can be decided without a task, a clock or a map belongs to `topo_lb_core`, and each
//! question to this host to `topo_lb_kernel`.
//!
//! The door: [`app::run`]. The loop is in `app::running`, what it writes in `app::kernel`; all that it reports
//! goes through [`telemetry`], and other tasks ask it by [`state_query`].

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

//! Which endpoints a node may use for each Service, why, and what the datapath has to be told. Pure: no
//! I/O, no kernel, no API server; only [`explain`] reads the clock, for how long an endpoint is ejected.
//!
//! It must never know aya, kube, tokio, axum or ratatui: a test of xtask (`layers`) holds its dependencies
//! against that. Of the workspace it imports only `topo_lb_common`.
//!
//! ```text
//! Update → cluster::State → Changed → topology → plan::Step
//! ```
//!
//! The door: [`cluster::State`] takes updates, [`reconcile::Reconciler`] plans, [`plan::commit`] has a
//! [`plan::store::Store`] carry a plan out, and [`explain`], [`lint`] and [`what_if`] say why.

pub mod cluster;
#[cfg(test)]
mod counted;
pub mod dns;
pub mod ejection;
pub mod evacuees;
pub mod exclusion;
pub mod explain;
pub mod flag;
pub mod homecoming;
pub mod ignored;
pub mod lint;
pub mod local;
pub mod magnitude;
pub mod metrics;
pub mod once;
pub mod pace;
pub mod peers;
pub mod plan;
pub mod rate;
pub mod reconcile;
pub mod refusal;
pub mod stale_write_gate;
pub mod topology;
pub mod turns;
pub mod what_if;

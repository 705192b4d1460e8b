//! topo-lb's agent, as a library: the command line is a thin caller of it.
//!
//! Data flows one way:
//!
//! ```text
//! source → Update → cluster::State → Changed → topology → plan → datapath
//!                   └──────── pure, no I/O, no clock ────────┘
//! ```

pub mod admin;
pub mod agent_metrics;
pub mod agent_state;
pub mod app;
pub mod called;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod connection_room;
pub mod crd;
pub mod datapath;
pub mod device;
pub mod dns;
pub mod ejection;
pub mod events;
pub mod exclusion;
pub mod explain;
pub mod health;
pub mod heap;
pub mod ignored;
pub mod kube_proxy;
pub mod lint;
pub mod list;
pub mod local;
pub mod magnitude;
pub mod metrics;
pub mod migrate;
pub mod name_service;
mod netlink;
mod nftables;
pub mod observe;
pub mod plan;
pub mod pod;
pub mod policy_status;
pub mod rate;
pub mod readiness;
pub mod reconcile;
pub mod refusal;
pub mod socket;
pub mod source;
pub mod stale_write_gate;
pub mod state_query;
pub mod telemetry;
pub mod top;
pub mod topology;
pub mod trace;
pub mod try_out;
pub mod turns;
pub mod view;
pub mod what_if;

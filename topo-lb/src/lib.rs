//! topo-lb's agent, as a library: the command line is a thin caller of it.
//!
//! Data flows one way:
//!
//! ```text
//! source → Update → cluster::State → Changed → topology → plan → datapath
//!                   └──────── pure, no I/O, no clock ────────┘
//! ```

pub mod app;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod datapath;
pub mod device;
pub mod explain;
pub mod heap;
pub mod lint;
pub mod list;
pub mod plan;
pub mod reconcile;
pub mod source;
pub mod topology;

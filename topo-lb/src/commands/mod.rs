//! What the commands besides `agent` do.

pub mod agent_metrics;
pub mod check;
pub mod list;
pub mod migrate;
pub mod prometheus;
pub mod top;
pub mod trace;
pub mod try_out;
pub mod view;

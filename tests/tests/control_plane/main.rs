//! The suites against a real API server, etcd and controllers, and with a real Prometheus.
//!
//! Each module is a suite: `cargo xtask test` runs them one by one, in lanes.

mod api;
mod autonomy;
mod changes;
mod commands_api_server;
mod demo_api_server;
mod deploy;
mod evacuation;
mod prometheus;
mod source;
mod telling;

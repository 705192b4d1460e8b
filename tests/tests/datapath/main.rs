//! The suites of the datapath. `cargo xtask test --only kernels` runs them on Debian's kernels, too.
//!
//! Each module is a suite: `cargo xtask test` runs them one by one, in lanes.

mod accounting;
mod boots;
mod clock;
mod connect;
mod datagram;
mod foreign;
mod overlays;
mod records;
mod tc_packets;
mod tc_traffic;
mod trace;
mod try_out;
mod verifier;
mod virtio;

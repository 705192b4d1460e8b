//! The maps: their layouts in Rust types, reading and writing them, and renewing them.

pub mod bpf;
pub(crate) mod carried;
pub mod commit;
pub mod connections;
pub mod counters;
pub(crate) mod earlier;
pub mod encode;
pub mod error;
pub mod excluded;
pub mod failing;
pub mod family;
pub mod far_endpoints;
pub(crate) mod frontends;
pub(crate) mod layout;
pub(crate) mod lease;
pub(crate) mod mapped;
pub mod members;
#[cfg(test)]
pub(crate) mod memory;
pub mod packets;
pub(crate) mod pinned;
pub(crate) mod quota;
pub mod renewal;
pub(crate) mod reply_filter;
pub mod share;
pub(crate) mod snat;
pub mod socket_storage;
pub mod sources;
pub(crate) mod spec;
pub mod store;
pub mod totals;
pub mod trace;
pub mod unprogrammed;
pub mod usage;

//! Names of headless Services, as the resolver of this node answers them, and how the cluster DNS Service
//! leads to it. Pure.

pub mod lead;
pub mod names;
pub mod transport;

/// The port of DNS.
pub const DNS_PORT: u16 = 53;

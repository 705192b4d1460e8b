//! The eBPF object in this binary, and loading it into the kernel.

pub mod load;
#[cfg(feature = "log")]
pub(crate) mod log;
pub mod object;
pub mod tcp_fields;

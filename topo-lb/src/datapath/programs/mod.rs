//! The eBPF object in this binary, and loading it into the kernel.

pub mod load;
pub mod object;
pub mod tcp_fields;

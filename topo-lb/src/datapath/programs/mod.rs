//! The eBPF object inside the binary, and how it comes into the kernel.

pub mod load;
pub mod object;

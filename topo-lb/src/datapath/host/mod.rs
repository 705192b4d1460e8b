//! What this host and its kernel offer: file systems, capabilities, features, bpf(2).

pub mod capability;
pub mod feature;
pub mod lock;
pub mod membarrier;
pub mod memlock;
pub mod mount;
pub mod syscall;

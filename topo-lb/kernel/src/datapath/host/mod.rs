//! Features of the host and its kernel: file systems, capabilities, bpf(2).

pub mod batch;
pub mod btf;
pub mod capability;
pub mod connection_room;
pub mod conntrack;
pub mod feature;
pub mod grace;
pub mod local_ports;
pub mod lock;
pub mod memlock;
pub mod memory_limit;
pub mod mount;
pub mod netns;
pub mod removal;
pub mod source_nat;
pub mod syscall;

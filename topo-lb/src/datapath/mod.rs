//! The kernel: how plans get into maps, and programs onto hooks.

pub mod bpf;
pub mod commit;
pub mod encode;
pub mod flows;
#[cfg(test)]
pub(crate) mod memory;
pub mod store;

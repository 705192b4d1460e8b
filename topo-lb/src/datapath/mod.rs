//! The kernel's side: the programs, their maps and their links, and how plans get into the maps.
//!
//! [`object`] is what the binary carries, [`load`] brings it into the kernel, [`attach`] lets it
//! act. Maps and links are pinned: they outlive the agent. [`commit`] carries plans out on a
//! [`store`]: [`bpf`] is the kernel's.

mod answerers;
pub mod attach;
pub mod attached;
pub mod bpf;
pub mod capability;
pub mod commit;
pub mod connections;
pub mod dialled;
pub mod effective;
pub mod encode;
pub mod excluded;
mod filters;
pub mod flows;
pub mod left_out;
pub mod link;
pub mod load;
pub mod lock;
pub mod membership;
pub mod memlock;
#[cfg(test)]
pub(crate) mod memory;
pub mod mount;
pub mod object;
pub mod overridden;
mod pace;
mod place;
pub mod probe;
pub mod renewal;
pub mod repair;
pub mod self_probe;
pub mod store;
mod syscall;
pub mod tc;
pub mod traffic;
pub mod trial;

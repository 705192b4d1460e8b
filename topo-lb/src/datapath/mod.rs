//! The kernel's side: the programs, their maps and their links, and how they come and go.
//!
//! [`object`] is what the binary carries, [`load`] brings it into the kernel, [`attach`] lets it
//! act. Maps and links are pinned: they outlive the agent.

pub mod attach;
pub mod capability;
pub mod link;
pub mod load;
pub mod lock;
pub mod mount;
pub mod object;
pub mod probe;
pub mod self_probe;
mod syscall;
pub mod trial;

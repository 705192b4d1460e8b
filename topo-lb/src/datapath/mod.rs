//! The kernel's side: the programs, their maps and their links, and how plans get into the maps.
//!
//! [`host`] asks what the kernel can do. [`programs`] loads what the binary carries, [`attach`] puts it
//! on cgroups and devices, [`maps`] holds the state. Maps and links are pinned: they outlive the agent.
//! [`inspect`] looks at what is attached, and tries whether it works.

pub mod attach;
pub mod host;
pub mod inspect;
pub mod maps;
pub mod programs;

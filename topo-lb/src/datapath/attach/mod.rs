//! Attaches programs to a cgroup and to devices, puts them back, and takes them away.

pub mod cleanup;
pub(crate) mod clsact;
pub mod devices;
pub(crate) mod filters;
pub mod hooks;
pub mod link;
pub mod pin;
pub(crate) mod place;
pub mod repair;

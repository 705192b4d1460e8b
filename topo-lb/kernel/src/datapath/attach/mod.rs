//! Attaches programs to a cgroup and to devices, restores them, and removes them.

pub mod accounting;
pub mod cleanup;
pub(crate) mod clsact;
pub mod devices;
pub(crate) mod filters;
pub(super) mod guards;
pub mod hooks;
mod mark;
pub(crate) mod masquerade;
pub mod mode;
pub(crate) mod place;
pub mod repair;
pub mod walk;
pub(super) mod xdp;

//! The hooks of cgroups, for clients whose socket is on this node: they change the address that a socket is
//! given, so its packets need no translation.
//!
//! `cgroup` has the hooks of connecting, sending and receiving, and `bind` that of `bind`. `accounting` counts what
//! connections move, at their end, and `walk` while they are open.

pub(crate) mod accounting;
pub(crate) mod bind;
pub(crate) mod cgroup;
mod connected;
mod dialled;
mod ejection;
mod ended;
mod exclusion;
mod flow;
pub(crate) mod place;
mod storage;
mod tcp_socket;
mod trace;
pub(crate) mod walk;

//! The hooks of tc, for clients that have no socket on this node, its guests and those outside: they translate each
//! packet by a table of connections.
//!
//! `xdp` is the fast path of what they have decided.
//!
//! `hooks` has the order of the `steps`. The steps of a known connection are in `tc`; those that open one, or forget or refuse it,
//! and those for fragments and ICMP errors, have files of their own.

mod budget;
mod collision;
mod connection;
mod fast_path;
mod forward;
mod four_tuple;
mod fragment;
mod frame;
pub(crate) mod hooks;
mod hop;
mod icmp;
mod note;
mod onward;
mod opening;
mod outcomes;
pub(crate) mod outside;
mod over;
mod own;
mod port;
mod probe;
mod refuse;
mod reply_filter;
mod rewrite;
mod snat;
mod state;
mod steps;
mod tc;
mod trace;
mod unreachable;
mod verdict;
pub(crate) mod xdp;

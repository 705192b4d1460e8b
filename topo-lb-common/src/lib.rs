//! The ABI of topo-lb: the layouts of the BPF maps that the agent and the programs share.
//!
//! Every layout is `repr(C)` without hidden padding. Each map has a file: [`record`] is
//! `services4`, `services6`, `records4` and `records6`, [`backend`] is `slots4` and `slots6`, [`flow`] is `flows4`
//! and `flows6`, and so on.
//!
//! Addresses are byte arrays in network order, so that `bpftool map dump` shows them readably.
//! **Ports are in host byte order** for the same reason. [`maps`] has the names of the maps.
//!
//! It must never know the agent, nor `std`, which the programs lack; it imports no other crate of the
//! workspace, and does no I/O.
//!
//! The door: [`maps`], and then the layout of the map in question; [`selection`] is how both sides choose an
//! endpoint.
#![cfg_attr(not(test), no_std)]

pub mod address;
pub mod affinity;
pub mod backend;
pub mod connected;
pub mod connection;
pub mod counters;
pub mod device;
pub mod ended;
pub mod exclusion;
pub mod failing;
pub mod far_endpoints;
pub mod flow;
pub mod frontend_filter;
pub mod hop;
mod layout;
pub mod maps;
pub mod members;
pub mod openings;
pub mod packets;
pub mod range;
pub mod record;
pub mod reply_filter;
pub mod selection;
pub mod snat;
pub mod sources;
pub mod stress;
pub mod totals;
pub mod trace;
pub mod unprogrammed;
pub mod usage;

//! The one ABI of topo-lb: what the agent writes into BPF maps and the programs in the kernel read.
//!
//! Every type here is `repr(C)`, without hidden padding, and the same on both sides. One idea, one
//! file, named as its map is: [`service`] is `services4`/`services6`, [`backend`] is
//! `slots4`/`slots6`, [`flow`] is `flows4`/`flows6` and `replies4`/`replies6`, and so on.
//!
//! Addresses are byte arrays in network order, so that `bpftool map dump` shows them readably.
//! **Ports are in host byte order** for the same reason. Names of map entries are in
//! [`maps`]. Nothing here does I/O; [`selection`] is the only code, and it is pure.
#![cfg_attr(not(test), no_std)]

pub mod address;
pub mod affinity;
pub mod backend;
pub mod connected;
pub mod connection;
pub mod counters;
pub mod exclusion;
pub mod flow;
mod layout;
pub mod maps;
pub mod members;
pub mod packets;
pub mod range;
pub mod reply_filter;
pub mod selection;
pub mod service;
pub mod unprogrammed;

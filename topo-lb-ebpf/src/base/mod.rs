//! What all programs stand on, and what decides nothing: the maps and the constants, IPv4 and IPv6, the clock,
//! atomic operations, and the bytes of packets. Its files use no other folder.

pub(crate) mod access;
pub(crate) mod atomic;
pub(crate) mod checksum;
pub(crate) mod clock;
pub(crate) mod family;
pub(crate) mod header;
pub(crate) mod maps;
mod object;
pub(crate) mod transport;
pub(crate) mod words;

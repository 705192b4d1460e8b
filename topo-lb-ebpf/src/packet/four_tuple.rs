//! Addresses and ports of a packet, and their keys and entries in the connection table.

use core::ptr::NonNull;

use topo_lb_common::connection::{Connection, Tuple};

use crate::base::family::{ConnectionOf, Family, TupleOf};
use crate::base::header::Header;
use crate::base::transport::split_ports;

/// Addresses, and ports in host order.
pub(crate) struct FourTuple<F: Family> {
    pub(crate) source: F::Address,
    pub(crate) destination: F::Address,
    pub(crate) source_port: u16,
    pub(crate) destination_port: u16,
}

/// The fields of a new entry besides its four-tuple.
#[derive(Clone, Copy)]
pub(crate) struct NewEntry {
    pub(crate) now: u64,
    pub(crate) service: u32,
    pub(crate) revision: u32,
    pub(crate) sequence: u32,
    pub(crate) kind: u8,
    pub(crate) affinity: u8,
    pub(crate) locality: u8,
}

impl<F: Family> FourTuple<F> {
    /// Of a packet with this header; `ports` as in the packet.
    #[inline(always)]
    pub(crate) fn of_packet(header: &Header<F>, ports: u32) -> Self {
        let (source_port, destination_port) = split_ports(ports);
        let Header { source, destination, .. } = *header;
        Self { source, destination, source_port, destination_port }
    }

    /// Of packets with a key.
    #[inline(always)]
    pub(crate) fn of_key(key: &TupleOf<F>) -> Self {
        Self {
            source: F::words(key.source),
            destination: F::words(key.destination),
            source_port: key.source_port,
            destination_port: key.destination_port,
        }
    }

    /// Of an entry: its packets' fields after translation.
    #[inline(always)]
    pub(crate) fn of_entry(entry: NonNull<ConnectionOf<F>>) -> Self {
        let entry = entry.as_ptr();
        // SAFETY: a look-up's pointer.
        unsafe {
            Self {
                source: F::words((*entry).source),
                destination: F::words((*entry).destination),
                source_port: (*entry).source_port,
                destination_port: (*entry).destination_port,
            }
        }
    }

    /// Of the reply.
    #[inline(always)]
    pub(crate) fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
        }
    }

    /// Whether this is the reply to packets with a key.
    #[inline(always)]
    pub(crate) fn is_reply_to(&self, key: &TupleOf<F>) -> bool {
        self.source == F::words(key.destination)
            && self.destination == F::words(key.source)
            && self.source_port == key.destination_port
            && self.destination_port == key.source_port
    }

    /// The key of packets with this four-tuple.
    #[inline(always)]
    pub(crate) fn key(&self, protocol: u8, way: u8, device: u32) -> TupleOf<F> {
        Tuple {
            source: F::bytes(self.source),
            destination: F::bytes(self.destination),
            source_port: self.source_port,
            destination_port: self.destination_port,
            protocol,
            way,
            reserved: 0,
            device,
        }
    }

    /// The entry that translates packets to this four-tuple.
    #[inline(always)]
    pub(crate) fn entry(&self, key: TupleOf<F>, new: NewEntry) -> ConnectionOf<F> {
        Connection {
            last_used: new.now,
            key,
            source: F::bytes(self.source),
            destination: F::bytes(self.destination),
            source_port: self.source_port,
            destination_port: self.destination_port,
            service: new.service,
            revision: new.revision,
            sequence: new.sequence,
            sent: 0,
            acknowledged: 0,
            asked: 0,
            state: 0,
            kind: new.kind,
            affinity: new.affinity,
            locality: new.locality,
            reserved: [0; 4],
        }
    }
}

/// The fields of an entry that programs read and write separately, in place.
#[derive(Clone, Copy)]
pub(crate) struct EntryFields {
    pub(crate) last_used: *mut u64,
    pub(crate) source_port: *mut u16,
    pub(crate) service: *mut u32,
    pub(crate) revision: *mut u32,
    pub(crate) sequence: *mut u32,
    pub(crate) sent: *mut u32,
    pub(crate) acknowledged: *mut u32,
    pub(crate) state: *mut u8,
    pub(crate) kind: *mut u8,
    pub(crate) asked: *mut u32,
}

impl EntryFields {
    #[inline(always)]
    pub(crate) fn of<A, K>(entry: NonNull<Connection<A, K>>) -> Self {
        let entry = entry.as_ptr();
        // SAFETY: a pointer to a complete value; nothing is read.
        unsafe {
            Self {
                last_used: &raw mut (*entry).last_used,
                source_port: &raw mut (*entry).source_port,
                service: &raw mut (*entry).service,
                revision: &raw mut (*entry).revision,
                sequence: &raw mut (*entry).sequence,
                sent: &raw mut (*entry).sent,
                acknowledged: &raw mut (*entry).acknowledged,
                state: &raw mut (*entry).state,
                kind: &raw mut (*entry).kind,
                asked: &raw mut (*entry).asked,
            }
        }
    }
}

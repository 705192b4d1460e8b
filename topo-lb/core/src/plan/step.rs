//! The steps of a plan: one write each.

use std::net::SocketAddr;
use std::sync::Arc;

use topo_lb_common::range::Range;

use super::entry::{Entry, SourceEntry};
use super::member::Member;
use crate::cluster::{Family, Frontend};

/// One change of the maps.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Set the range in which frontends are.
    SetRange(Range),
    /// Give an index to a Service port; its counters start at zero.
    Name {
        /// The index.
        index: u32,
        /// `namespace/name:port`.
        name: Arc<str>,
    },
    /// Write endpoints to slots that no Service refers to.
    FillSlots {
        /// The family of the slots.
        family: Family,
        /// The first slot.
        base: u32,
        /// The entry whose endpoints they are.
        entry: Entry,
    },
    /// List an endpoint as a Service's member, or change what is known of it.
    SetMember {
        /// The Service port.
        index: u32,
        /// The endpoint.
        endpoint: SocketAddr,
        /// Whether this node's new connections may use it, and its node.
        member: Member,
    },
    /// Publish the entry of a frontend, for new connections.
    Publish {
        /// The frontend.
        frontend: Frontend,
        /// Its entry.
        entry: Entry,
        /// First slot of its row, if that is not inline.
        slot_base: Option<u32>,
        /// The record to write, which no program can read yet.
        record: u32,
    },
    /// Remove a frontend: its connections are left untouched from now on.
    Withdraw(Frontend),
    /// Remove an endpoint from a Service's members.
    RemoveMember {
        /// The Service port.
        index: u32,
        /// The endpoint.
        endpoint: SocketAddr,
    },
    /// Wait until no running program can still read what was replaced.
    Grace,
    /// Release a record that no program reads any more, and its slots if no other record refers to them.
    Free {
        /// The family of both.
        family: Family,
        /// The record.
        record: u32,
        /// The first slot, and their number; `None` if the row was inline.
        slots: Option<(u32, u32)>,
    },
    /// Free an index.
    Unname(u32),
    /// Write who may dial a frontend with source ranges.
    SetSource(SourceEntry),
    /// Remove such an entry.
    RemoveSource(SourceEntry),
}

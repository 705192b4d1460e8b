//! The maps of one address family.

use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use aya::maps::{Array, IterableMap as _, Map, MapData, MapError};
use topo_lb_common::members::Member;
use topo_lb_common::selection::NO_SLOTS;

use super::encode::{self, Head, Layout};
use super::error::{OpenError, StoreError};
use super::mapped::Mapped;
use super::pinned::{Hash, Raw, absent_is_fine, entries, failed, found, open, write_all};
use super::sources::Sources;
use crate::datapath::host::batch::{lookup_batch, update_batch};
use topo_lb_core::cluster::Frontend;
use topo_lb_core::plan::entry::SourceEntry;
use topo_lb_core::plan::{self, Entry, Installed, Placed};
use topo_lb_core::topology::Chosen;

/// Attempts of a read that overlaps with a write.
const ATTEMPTS: u32 = 3;
/// Most entries that are written at once.
pub(crate) const BATCH: usize = 4_096;

pub(crate) struct FamilyMaps<L: Layout> {
    services: Hash<L::Frontend, u32>,
    records: Mapped<L::Record>,
    slots: Array<MapData, Raw<L::Backend>>,
    members: Hash<L::MemberKey, Member>,
    /// Only with `--frontends all`.
    sources: Option<Sources<L>>,
}

/// A published value of a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The key.
    pub frontend: Frontend,
    /// What its connections do, and where.
    pub placed: Placed,
}

/// An entry to publish.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publication<'a> {
    pub(crate) frontend: Frontend,
    pub(crate) entry: &'a Entry,
    pub(crate) slot_base: Option<u32>,
    pub(crate) record: u32,
}

/// What the record of a frontend says now.
enum Now {
    Absent,
    Head(Head),
    /// Every read overlapped with a write.
    Changing,
}

impl<L: Layout> FamilyMaps<L> {
    pub(crate) fn open(pin_dir: &Path) -> Result<Self, OpenError> {
        Ok(Self {
            services: open(pin_dir, L::SERVICES, Map::HashMap)?,
            records: Mapped::open(pin_dir, L::RECORDS)?,
            slots: open(pin_dir, L::SLOTS, Map::Array)?,
            members: open(pin_dir, L::MEMBERS, Map::HashMap)?,
            sources: Sources::open(pin_dir)?,
        })
    }

    /// Clears a record that no program reads any more.
    pub(crate) fn free(&mut self, record: u32) -> Result<(), StoreError> {
        self.records
            .set(record, &bytemuck::Zeroable::zeroed())
            .map_err(failed(L::RECORDS, "clear a record"))
    }

    pub(crate) fn withdraw(&mut self, frontend: &Frontend) -> Result<(), StoreError> {
        let Some(key) = Self::key(frontend) else { return Ok(()) };
        absent_is_fine(self.services.remove(&Raw(key)))
            .map_err(failed(L::SERVICES, "remove a Service"))
    }

    /// Writes endpoints to slots, from `base` on.
    pub(crate) fn fill_slots(&mut self, base: u32, row: &[Chosen]) -> Result<(), StoreError> {
        let (slots, backends): (Vec<u32>, Vec<_>) =
            (base..).zip(encode::backends::<L>(row)).unzip();
        write_all(self.slots.map(), &slots, &backends).map_err(failed(L::SLOTS, "write endpoints"))
    }

    pub(crate) fn set_member(
        &mut self,
        index: u32,
        endpoint: SocketAddr,
        member: plan::Member,
    ) -> Result<(), StoreError> {
        let Some(key) = Self::member(index, endpoint) else { return Ok(()) };
        let member = Member { state: member.state() };
        self.members.insert(Raw(key), Raw(member), 0).map_err(failed(L::MEMBERS, "write a member"))
    }

    pub(crate) fn remove_member(
        &mut self,
        index: u32,
        endpoint: SocketAddr,
    ) -> Result<(), StoreError> {
        let Some(key) = Self::member(index, endpoint) else { return Ok(()) };
        absent_is_fine(self.members.remove(&Raw(key)))
            .map_err(failed(L::MEMBERS, "remove a member"))
    }

    /// Writes who may dial a frontend. Without the map, nobody is kept from it.
    pub(crate) fn set_source(&mut self, entry: &SourceEntry) -> Result<(), StoreError> {
        self.sources.as_mut().map_or(Ok(()), |sources| sources.set(entry))
    }

    pub(crate) fn remove_source(&mut self, entry: &SourceEntry) -> Result<(), StoreError> {
        self.sources.as_mut().map_or(Ok(()), |sources| sources.remove(entry))
    }

    fn key(frontend: &Frontend) -> Option<L::Frontend> {
        let clients = encode::clients_number(frontend.clients);
        let protocol = encode::protocol_number(frontend.protocol) | clients;
        L::octets(frontend.address).map(|octets| L::frontend(octets, frontend.port, protocol))
    }

    fn member(index: u32, endpoint: SocketAddr) -> Option<L::MemberKey> {
        Some(L::member(index, L::octets(endpoint.ip())?, endpoint.port()))
    }

    /// Publishes these entries, at most [`BATCH`], up to the first that is of the other family. Returns how
    /// many; one at least.
    pub(crate) fn publish(&mut self, entries: &[Publication<'_>]) -> Result<usize, StoreError> {
        let (mut keys, mut records) = (Vec::new(), Vec::new());
        for &Publication { frontend, entry, slot_base, record } in entries {
            let Some(key) = Self::key(&frontend) else { break };
            self.records
                .set(record, &encode::record::<L>(key, entry, slot_base))
                .map_err(failed(L::RECORDS, "write a Service"))?;
            keys.push(key);
            records.push(record);
        }
        // A program that sees an index sees the record.
        fence(Ordering::Release);
        update_batch(self.services.map().fd().as_fd(), &keys, &records)
            .map_err(|error| failed(L::SERVICES, "write a Service")(MapError::IoError(error)))
    }

    pub(crate) fn published(&self, all: &mut Vec<Published>) -> Result<(), StoreError> {
        for pair in entries(&self.services, L::SERVICES) {
            let (key, record) = pair?;
            if let Some(placed) = self.placed(&key, record)?
                && let Some(frontend) = L::read_frontend(&key)
            {
                all.push(Published { frontend, placed });
            }
        }
        Ok(())
    }

    /// What the frontend's record says; `None` if the frontend was removed meanwhile. A writer may
    /// reuse the record while this process reads it: the index shows whether it did.
    fn placed(&self, key: &L::Frontend, first: u32) -> Result<Option<Placed>, StoreError> {
        let mut record = first;
        for _ in 0..ATTEMPTS {
            let value = self.records.get(record).map_err(failed(L::RECORDS, "read"))?;
            let (_, Head { slot_base: base, count, wider, .. }, _) = L::read_record(&value);
            let row = match base {
                NO_SLOTS => Vec::new(),
                _ => self.row(base, usize::from(count) + usize::from(wider))?,
            };
            let slot = |slot: u32| row.get(slot.checked_sub(base)? as usize).copied();
            let (_, entry, slot_base) = encode::entry::<L>(&value, slot);
            match found(L::SERVICES, self.services.get(&Raw(*key), 0))? {
                Some(now) if now == record => return Ok(Some(Placed { entry, slot_base, record })),
                Some(now) => record = now,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// What slots have, from `base` on.
    fn row(&self, base: u32, length: usize) -> Result<Vec<L::Backend>, StoreError> {
        let mut slots = vec![0; length];
        let mut row = vec![bytemuck::Zeroable::zeroed(); length];
        // The keys of an array are its indexes, and the call names the one before.
        let map = self.slots.map().fd().as_fd();
        let (read, _) = lookup_batch(map, base.checked_sub(1), &mut slots, &mut row)
            .map_err(|error| failed(L::SLOTS, "read")(MapError::IoError(error)))?;
        // It begins again behind the last index.
        row.truncate(if slots.first() == Some(&base) { read } else { 0 });
        Ok(row)
    }

    /// Reads members, and who may dial frontends.
    pub(crate) fn read_beside(&self, installed: &mut Installed) -> Result<(), StoreError> {
        if let Some(sources) = &self.sources {
            sources.read(installed)?;
        }
        for pair in entries(&self.members, L::MEMBERS) {
            let (key, member) = pair?;
            let (index, endpoint) = L::read_member(&key);
            installed.adopt_member(index, endpoint, plan::Member::of_state(member.state));
        }
        Ok(())
    }

    /// Whether `endpoint` is a member of the frontend's Service; `true` if every read overlapped with
    /// a write.
    pub(crate) fn serves(
        &self,
        frontend: &Frontend,
        endpoint: SocketAddr,
    ) -> Result<bool, StoreError> {
        match self.head(frontend)? {
            Now::Head(head) => {
                let Some(key) = Self::member(head.service, endpoint) else { return Ok(false) };
                Ok(found(L::MEMBERS, self.members.get(&Raw(key), 0))?.is_some())
            }
            Now::Absent => Ok(false),
            Now::Changing => Ok(true),
        }
    }

    /// Whether a frontend leads to endpoints; `false` if every read overlapped with a write.
    pub(crate) fn has_endpoints(&self, frontend: &Frontend) -> Result<bool, StoreError> {
        Ok(matches!(self.head(frontend)?, Now::Head(head) if head.count > 0))
    }

    /// Whether a frontend leads to endpoints, and never to this one; `false` if every read overlapped with a write.
    pub(crate) fn avoids(
        &self,
        frontend: &Frontend,
        endpoint: SocketAddr,
    ) -> Result<bool, StoreError> {
        let Some(key) = Self::key(frontend) else { return Ok(false) };
        let Some(record) = found(L::SERVICES, self.services.get(&Raw(key), 0))? else {
            return Ok(false);
        };
        let placed = self.placed(&key, record)?;
        Ok(placed.is_some_and(|Placed { entry, .. }| {
            let mut row = entry.row.iter();
            entry.count > 0 && !entry.row.is_empty() && row.all(|one| one.address() != endpoint)
        }))
    }

    fn head(&self, frontend: &Frontend) -> Result<Now, StoreError> {
        let Some(key) = Self::key(frontend) else { return Ok(Now::Absent) };
        let index = || found(L::SERVICES, self.services.get(&Raw(key), 0));
        let Some(mut record) = index()? else { return Ok(Now::Absent) };
        for _ in 0..ATTEMPTS {
            let value = self.records.get(record).map_err(failed(L::RECORDS, "read"))?;
            let (_, head, _) = L::read_record(&value);
            match index()? {
                None => return Ok(Now::Absent),
                Some(now) if now == record => return Ok(Now::Head(head)),
                Some(now) => record = now,
            }
        }
        Ok(Now::Changing)
    }
}

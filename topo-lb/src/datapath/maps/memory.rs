//! The maps in memory, for tests. They check no more than the kernel, so that a wrong plan shows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use topo_lb_common::range::Range;

use super::error::StoreError;
use super::store::Store;
use crate::cluster::{Family, Frontend};
use crate::plan::{Capacity, Entry, Installed, Step};
use crate::topology::Chosen;

/// A published value; its row is read from where the value refers to.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    entry: Entry,
    slot_base: Option<u32>,
}

#[derive(Clone, Debug)]
pub(crate) struct MemoryStore {
    capacity: Capacity,
    range: Range,
    services: BTreeMap<Frontend, Value>,
    slots: [BTreeMap<u32, Chosen>; 2],
    members: BTreeMap<(u32, SocketAddr), bool>,
    names: BTreeMap<u32, String>,
    /// Slots to which a value refers that was replaced since the last grace period.
    unsettled: [BTreeSet<u32>; 2],
    /// Whether a write since the last `revise` concerns endpoints of connections.
    pub(crate) is_unrevised: bool,
    pub(crate) writes: usize,
    /// Fails the write with this number, once.
    pub(crate) fail_at: Option<usize>,
}

impl MemoryStore {
    pub(crate) fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            range: Range::EMPTY,
            services: BTreeMap::new(),
            slots: Default::default(),
            members: BTreeMap::new(),
            names: BTreeMap::new(),
            unsettled: Default::default(),
            is_unrevised: false,
            writes: 0,
            fail_at: None,
        }
    }

    /// The endpoints of a connection to the frontend; `None` if it is not published.
    pub(crate) fn resolve(&self, frontend: &Frontend) -> Option<Vec<Chosen>> {
        let in_range = match frontend.address {
            std::net::IpAddr::V4(address) => self.range.holds4(address.octets()),
            std::net::IpAddr::V6(address) => {
                self.range.holds6(address.octets()[..8].try_into().unwrap())
            }
        };
        let value = self.services.get(frontend).filter(|_| in_range)?;
        Some(match value.slot_base {
            None => value.entry.row.to_vec(),
            Some(base) => (base..)
                .take(value.entry.row.len())
                .map(|slot| self.slots[frontend.family() as usize][&slot])
                .collect(),
        })
    }

    pub(crate) fn members(&self) -> &BTreeMap<(u32, SocketAddr), bool> {
        &self.members
    }

    pub(crate) fn names(&self) -> &BTreeMap<u32, String> {
        &self.names
    }

    /// Counts a write; fails it if `fail_at` says so.
    fn count_write(&mut self) -> Result<(), StoreError> {
        self.writes += 1;
        if self.fail_at == Some(self.writes) {
            self.fail_at = None;
            return Err(StoreError::Map {
                map: "memory",
                action: "write",
                errno: Some(libc::ENOMEM),
                reason: "no memory".into(),
            });
        }
        Ok(())
    }

    fn fill_slots(&mut self, family: Family, base: u32, row: &[Chosen]) {
        for (slot, chosen) in (base..).zip(row) {
            assert!(slot < self.capacity.slots);
            assert!(!self.unsettled[family as usize].contains(&slot), "slot {slot} may be read");
            for (frontend, value) in &self.services {
                let Some(base) = value.slot_base else { continue };
                let held = base..base + value.entry.row.len() as u32;
                assert!(
                    frontend.family() != family || !held.contains(&slot),
                    "slot {slot} is {frontend}'s"
                );
            }
            self.slots[family as usize].insert(slot, *chosen);
        }
    }

    fn unsettle(&mut self, frontend: &Frontend) {
        if let Some(Value { entry, slot_base: Some(base) }) = self.services.get(frontend) {
            self.unsettled[frontend.family() as usize]
                .extend(*base..*base + entry.row.len() as u32);
        }
    }
}

impl Store for MemoryStore {
    fn write(&mut self, step: &Step) -> Result<(), StoreError> {
        match step {
            Step::Grace => {
                assert!(!self.is_unrevised, "connections keep what was replaced while this waits");
                self.unsettled = Default::default();
                return Ok(());
            }
            Step::FreeSlots { .. } => return Ok(()),
            _ => self.count_write()?,
        }
        match step {
            Step::SetRange(range) => self.range = *range,
            Step::Name { index, name } => {
                assert!(
                    *index < self.capacity.services,
                    "index {index} is outside of the counters"
                );
                let before = self.names.insert(*index, name.to_string());
                assert_eq!(before, None, "index {index} named twice");
            }
            Step::Unname(index) => assert!(self.names.remove(index).is_some()),
            Step::FillSlots { family, base, row } => self.fill_slots(*family, *base, row),
            Step::SetMember { index, endpoint, chosen } => {
                self.members.insert((*index, *endpoint), *chosen);
                assert!(self.members.len() <= 2 * self.capacity.members as usize);
            }
            Step::RemoveMember { index, endpoint } => {
                self.members.remove(&(*index, *endpoint));
            }
            Step::Publish { frontend, entry, slot_base } => {
                let is_named = self.names.contains_key(&entry.index);
                assert!(is_named, "{frontend} has an index without a name");
                self.unsettle(frontend);
                let value = Value { entry: entry.clone(), slot_base: *slot_base };
                self.services.insert(*frontend, value);
                let family = frontend.family();
                let used = self.services.keys().filter(|other| other.family() == family).count();
                assert!(used <= self.capacity.services as usize);
            }
            Step::Withdraw(frontend) => {
                self.unsettle(frontend);
                self.services.remove(frontend);
            }
            Step::Grace | Step::FreeSlots { .. } => unreachable!("done above"),
        }
        self.is_unrevised |= matches!(
            step,
            Step::SetMember { .. }
                | Step::RemoveMember { .. }
                | Step::Publish { .. }
                | Step::Withdraw(_)
        );
        Ok(())
    }

    fn revise(&mut self) -> Result<(), StoreError> {
        self.is_unrevised = false;
        Ok(())
    }

    fn installed(&mut self) -> Result<Installed, StoreError> {
        let mut installed = Installed::new(self.capacity);
        installed.adopt_range(self.range);
        for (index, name) in &self.names {
            installed.adopt_name(*index, name.as_str().into());
        }
        for (frontend, value) in &self.services {
            installed.adopt(*frontend, value.entry.clone(), value.slot_base);
        }
        for (&(index, endpoint), &chosen) in &self.members {
            installed.adopt_member(index, endpoint, chosen);
        }
        Ok(installed)
    }
}

//! The maps in memory, for tests: as dumb as the kernel's, so that a wrong plan shows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use topo_lb_common::range::Range;

use super::store::{Store, StoreError};
use crate::cluster::{Family, Frontend};
use crate::plan::{Capacity, Entry, Installed};
use crate::topology::Chosen;

/// A published value: the row is looked up where the value says it is.
#[derive(Clone, Debug, PartialEq)]
struct Value {
    entry: Entry,
    slot_base: Option<u32>,
}

/// Maps in memory.
#[derive(Clone, Debug)]
pub(crate) struct MemoryStore {
    capacity: Capacity,
    range: Range,
    services: BTreeMap<Frontend, Value>,
    slots: [BTreeMap<u32, Chosen>; 2],
    members: BTreeMap<(u32, SocketAddr), bool>,
    names: BTreeMap<u32, String>,
    /// Slots that a value replaced since the last grace period still refers to.
    unsettled: [BTreeSet<u32>; 2],
    /// A write since the last `revise` bears on endpoints of connections.
    pub(crate) is_unrevised: bool,
    /// Writes so far.
    pub(crate) writes: usize,
    /// Fails the write of this number, once.
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

    /// What a connection to the frontend can get; `None` where it is not ours.
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

    fn write(&mut self) -> Result<(), StoreError> {
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

    fn unsettle(&mut self, frontend: &Frontend) {
        if let Some(Value { entry, slot_base: Some(base) }) = self.services.get(frontend) {
            self.unsettled[frontend.family() as usize]
                .extend(*base..*base + entry.row.len() as u32);
        }
    }
}

impl Store for MemoryStore {
    fn set_range(&mut self, range: Range) -> Result<(), StoreError> {
        self.write()?;
        self.range = range;
        Ok(())
    }

    fn name(&mut self, index: u32, name: &str) -> Result<(), StoreError> {
        self.write()?;
        assert!(index < self.capacity.services, "index {index} is outside of the counters");
        assert_eq!(self.names.insert(index, name.into()), None, "index {index} named twice");
        Ok(())
    }

    fn unname(&mut self, index: u32) -> Result<(), StoreError> {
        self.write()?;
        assert!(self.names.remove(&index).is_some());
        Ok(())
    }

    fn fill_slots(&mut self, family: Family, base: u32, row: &[Chosen]) -> Result<(), StoreError> {
        self.write()?;
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
        Ok(())
    }

    fn set_member(
        &mut self,
        index: u32,
        endpoint: SocketAddr,
        chosen: bool,
    ) -> Result<(), StoreError> {
        self.write()?;
        self.members.insert((index, endpoint), chosen);
        self.is_unrevised = true;
        assert!(self.members.len() <= 2 * self.capacity.members as usize);
        Ok(())
    }

    fn remove_member(&mut self, index: u32, endpoint: SocketAddr) -> Result<(), StoreError> {
        self.write()?;
        self.members.remove(&(index, endpoint));
        self.is_unrevised = true;
        Ok(())
    }

    fn publish(
        &mut self,
        frontend: &Frontend,
        entry: &Entry,
        slot_base: Option<u32>,
    ) -> Result<(), StoreError> {
        self.write()?;
        assert!(self.names.contains_key(&entry.index), "{frontend} has an index without a name");
        self.unsettle(frontend);
        self.services.insert(*frontend, Value { entry: entry.clone(), slot_base });
        self.is_unrevised = true;
        let family = frontend.family();
        let used = self.services.keys().filter(|other| other.family() == family).count();
        assert!(used <= self.capacity.services as usize);
        Ok(())
    }

    fn withdraw(&mut self, frontend: &Frontend) -> Result<(), StoreError> {
        self.write()?;
        self.unsettle(frontend);
        self.services.remove(frontend);
        self.is_unrevised = true;
        Ok(())
    }

    fn grace(&mut self) -> Result<(), StoreError> {
        assert!(!self.is_unrevised, "connections keep what was replaced for as long as this waits");
        self.unsettled = Default::default();
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

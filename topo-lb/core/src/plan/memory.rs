//! The maps in memory, for tests. They check no more than the kernel, so that a wrong plan shows.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use topo_lb_common::range::Range;

use crate::cluster::{Family, Frontend};
use crate::plan::entry::SourceEntry;
use crate::plan::store::Store;
use crate::plan::{Capacity, Installed, Member, Placed, Step};
use crate::topology::Chosen;

#[derive(Clone, Debug)]
pub(crate) struct MemoryStore {
    capacity: Capacity,
    range: Range,
    /// By record, as a program finds them.
    records: [BTreeMap<u32, (Frontend, Placed)>; 2],
    services: BTreeMap<Frontend, u32>,
    slots: [BTreeMap<u32, Chosen>; 2],
    members: BTreeMap<(u32, SocketAddr), Member>,
    names: BTreeMap<u32, String>,
    sources: BTreeSet<SourceEntry>,
    /// Records that were replaced since the last grace period.
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
            records: Default::default(),
            services: BTreeMap::new(),
            slots: Default::default(),
            members: BTreeMap::new(),
            names: BTreeMap::new(),
            sources: BTreeSet::new(),
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
                let [first, second, ..] = *address.octets().as_chunks().0 else { unreachable!() };
                self.range.holds6([first, second].map(u32::from_ne_bytes))
            }
        };
        let record = self.services.get(frontend).filter(|_| in_range)?;
        let (owner, placed) = &self.records[frontend.family() as usize][record];
        assert_eq!(owner, frontend, "record {record} is another frontend's");
        Some(match placed.slot_base {
            None => placed.entry.filled().to_vec(),
            Some(base) => (base..)
                .take(placed.entry.slots() as usize)
                .map(|slot| self.slots[frontend.family() as usize][&slot])
                .collect(),
        })
    }

    pub(crate) fn members(&self) -> &BTreeMap<(u32, SocketAddr), Member> {
        &self.members
    }

    pub(crate) fn names(&self) -> &BTreeMap<u32, String> {
        &self.names
    }

    /// Counts a write; fails it if `fail_at` says so.
    fn count_write(&mut self) -> Result<(), Failed> {
        self.writes += 1;
        if self.fail_at == Some(self.writes) {
            self.fail_at = None;
            return Err(Failed);
        }
        Ok(())
    }

    fn fill_slots(&mut self, family: Family, base: u32, row: &[Chosen]) {
        for (slot, chosen) in (base..).zip(row) {
            assert!(slot < self.capacity.slots);
            for (record, (frontend, placed)) in &self.records[family as usize] {
                let Some(base) = placed.slot_base else { continue };
                let held = base..base + placed.entry.slots();
                assert!(!held.contains(&slot), "slot {slot} is {frontend}'s, in record {record}");
            }
            self.slots[family as usize].insert(slot, *chosen);
        }
    }

    /// A program that looked the frontend up before this may still read its record.
    fn unsettle(&mut self, frontend: &Frontend, record: Option<u32>) {
        self.unsettled[frontend.family() as usize].extend(record);
    }
}

/// A write that `fail_at` made fail.
#[derive(Debug)]
pub(crate) struct Failed;

impl Store for MemoryStore {
    type Error = Failed;

    fn write(&mut self, steps: &[Step]) -> Result<usize, Failed> {
        let step = &steps[0];
        if !matches!(step, Step::Grace | Step::Free { .. }) {
            self.count_write()?;
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
            Step::FillSlots { family, base, entry } => {
                self.fill_slots(*family, *base, &entry.filled());
            }
            Step::SetMember { index, endpoint, member } => {
                self.members.insert((*index, *endpoint), *member);
                assert!(self.members.len() <= 2 * self.capacity.members as usize);
            }
            Step::RemoveMember { index, endpoint } => {
                self.members.remove(&(*index, *endpoint));
            }
            Step::Publish { frontend, entry, slot_base, record } => {
                let is_named = self.names.contains_key(&entry.index);
                assert!(is_named, "{frontend} has an index without a name");
                let (slot_base, record) = (*slot_base, *record);
                assert!(record < self.capacity.records());
                let placed = Placed { entry: entry.clone(), slot_base, record };
                let family = frontend.family();
                let free = self.records[family as usize].insert(record, (*frontend, placed));
                assert!(free.is_none(), "record {record} is in use");
                let before = self.services.insert(*frontend, record);
                self.unsettle(frontend, before);
                let used = self.services.keys().filter(|other| other.family() == family).count();
                assert!(used <= self.capacity.services as usize);
            }
            Step::Withdraw(frontend) => {
                let before = self.services.remove(frontend);
                self.unsettle(frontend, before);
            }
            Step::SetSource(entry) => assert!(self.sources.insert(*entry), "{entry:?} is there"),
            Step::RemoveSource(entry) => {
                assert!(self.sources.remove(entry), "{entry:?} is not there");
            }
            Step::Grace => {
                assert!(!self.is_unrevised, "connections keep what was replaced while this waits");
                self.unsettled = Default::default();
            }
            Step::Free { family, record, .. } => {
                let place = *family as usize;
                assert!(!self.unsettled[place].contains(record), "record {record} may be read");
                assert!(self.records[place].remove(record).is_some(), "record {record} is free");
            }
        }
        self.is_unrevised |= matches!(
            step,
            Step::SetMember { .. }
                | Step::RemoveMember { .. }
                | Step::Publish { .. }
                | Step::Withdraw(_)
        );
        Ok(1)
    }

    fn revise(&mut self) -> Result<(), Failed> {
        self.is_unrevised = false;
        Ok(())
    }

    fn installed(&mut self) -> Result<Installed, Failed> {
        let mut installed = Installed::new(self.capacity);
        installed.adopt_range(self.range);
        for (index, name) in &self.names {
            installed.adopt_name(*index, name.as_str().into());
        }
        // A record that nothing refers to is free, whatever it holds.
        for (place, records) in self.records.iter_mut().enumerate() {
            let used =
                |record: &u32, frontend: &Frontend| self.services.get(frontend) == Some(record);
            records.retain(|record, (frontend, _)| used(record, frontend));
            self.unsettled[place].clear();
        }
        for (frontend, placed) in self.records.iter().flat_map(BTreeMap::values) {
            installed.adopt(*frontend, placed.clone());
        }
        for (&(index, endpoint), &member) in &self.members {
            installed.adopt_member(index, endpoint, member);
        }
        self.sources.iter().for_each(|entry| installed.adopt_source(*entry));
        Ok(installed)
    }
}

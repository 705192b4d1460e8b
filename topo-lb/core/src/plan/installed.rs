//! What the kernel maps hold. Read from them at start, then updated with every write.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use topo_lb_common::range::Range;

use super::capacity::Capacity;
use super::entry::{Entry, SourceEntry};
use super::indexes::Indexes;
use super::member::Member;
use super::slots::Slots;
use super::step::Step;
use crate::cluster::{Family, Frontend, Protocol};

/// A published entry and the place of its row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// What its connections do.
    pub entry: Entry,
    /// First slot, if the row is not inline.
    pub slot_base: Option<u32>,
    /// Its record.
    pub record: u32,
}

/// Sorts before every other frontend: IPv4 comes before IPv6.
const LOWEST: Frontend = Frontend::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0, Protocol::Tcp);
/// Sorts before every other frontend of IPv6.
const LOWEST6: Frontend = Frontend::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0, Protocol::Tcp);

/// The contents of the maps.
#[derive(Clone, Debug)]
pub struct Installed {
    range: Range,
    placed: BTreeMap<Frontend, Placed>,
    /// By Service index.
    frontends: BTreeSet<(u32, Frontend)>,
    members: BTreeMap<(u32, SocketAddr), Member>,
    indexes: Indexes,
    slots: [Slots; 2],
    /// How many records refer to a row in slots, by its first slot: those of published entries, and
    /// replaced ones until they are freed.
    rows: [BTreeMap<u32, u32>; 2],
    records: [Slots; 2],
    counts: [usize; 2],
    member_counts: [usize; 2],
    sources: BTreeSet<SourceEntry>,
    capacity: Capacity,
}

impl Installed {
    /// Empty maps of these sizes.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            range: Range::EMPTY,
            placed: BTreeMap::new(),
            frontends: BTreeSet::new(),
            members: BTreeMap::new(),
            indexes: Indexes::new(capacity.services),
            slots: Family::BOTH.map(|_| Slots::new(capacity.slots)),
            rows: Default::default(),
            records: Family::BOTH.map(|_| Slots::new(capacity.records())),
            counts: [0; 2],
            member_counts: [0; 2],
            sources: BTreeSet::new(),
            capacity,
        }
    }

    /// The range of frontends that the kernel knows.
    pub const fn range(&self) -> Range {
        self.range
    }

    /// Every published frontend.
    pub fn placed(&self) -> impl Iterator<Item = (&Frontend, &Placed)> {
        self.placed.iter()
    }

    /// The published frontends with the lowest and the highest address of each family, but for those that are
    /// `withdrawn`: what they have in common, all have.
    pub fn outermost<'a>(
        &'a self,
        withdrawn: &'a BTreeSet<Frontend>,
    ) -> impl Iterator<Item = &'a Frontend> {
        let families = [self.placed.range(..LOWEST6), self.placed.range(LOWEST6..)];
        families.into_iter().flat_map(|family| {
            let mut left = family.map(|(at, _)| at).filter(|at| !withdrawn.contains(at));
            [left.next(), left.next_back()].into_iter().flatten()
        })
    }

    /// The entry of a frontend, if it is published.
    pub fn get(&self, frontend: &Frontend) -> Option<&Placed> {
        self.placed.get(frontend)
    }

    /// Number of published frontends of a family.
    pub const fn frontends_in(&self, family: Family) -> usize {
        self.counts[family as usize]
    }

    /// The frontends published for a Service port.
    pub fn frontends_of(&self, index: u32) -> impl Iterator<Item = &Frontend> {
        self.frontends
            .range((index, LOWEST)..)
            .take_while(move |(of, _)| *of == index)
            .map(|(_, frontend)| frontend)
    }

    /// The members listed for a Service port.
    pub fn members_of(&self, index: u32) -> impl Iterator<Item = SocketAddr> {
        // IPv4 sorts before IPv6: this is the lowest address.
        let lowest = SocketAddr::from(([0, 0, 0, 0], 0));
        self.members
            .range((index, lowest)..)
            .take_while(move |&(&(of, _), _)| of == index)
            .map(|(&(_, endpoint), _)| endpoint)
    }

    /// What is known of an endpoint of a Service port; `None` if it is not listed.
    pub fn member(&self, index: u32, endpoint: SocketAddr) -> Option<Member> {
        self.members.get(&(index, endpoint)).copied()
    }

    /// Number of listed members of a family.
    pub const fn members_in(&self, family: Family) -> usize {
        self.member_counts[family as usize]
    }

    /// The indexes in use.
    pub const fn indexes(&self) -> &Indexes {
        &self.indexes
    }

    /// The slots of a family.
    pub const fn slots(&self, family: Family) -> &Slots {
        &self.slots[family as usize]
    }

    /// The records of a family.
    pub const fn records(&self, family: Family) -> &Slots {
        &self.records[family as usize]
    }

    /// Who may dial frontends with source ranges.
    pub const fn sources(&self) -> &BTreeSet<SourceEntry> {
        &self.sources
    }

    /// The sizes of the maps.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Records that a step was carried out.
    pub fn record(&mut self, step: &Step) {
        match step {
            Step::SetRange(range) => self.range = *range,
            Step::Name { index, name } => self.indexes.set(*index, name.clone()),
            Step::FillSlots { family, base, entry } => {
                self.slots[*family as usize].claim(*base, entry.slots());
            }
            Step::SetMember { index, endpoint, member } => {
                self.adopt_member(*index, *endpoint, *member);
            }
            Step::Publish { frontend, entry, slot_base, record } => {
                self.forget(frontend);
                let family = frontend.family() as usize;
                self.records[family].claim(*record, 1);
                if let Some(base) = *slot_base {
                    let records = self.rows[family].entry(base).or_default();
                    *records += 1;
                    // Unless the step that filled them has taken them, or another record shares them.
                    if *records == 1 {
                        self.slots[family].claim(base, entry.slots());
                    }
                }
                self.frontends.insert((entry.index, *frontend));
                self.counts[family] += 1;
                let (slot_base, record) = (*slot_base, *record);
                self.placed.insert(*frontend, Placed { entry: entry.clone(), slot_base, record });
            }
            Step::Withdraw(frontend) => self.forget(frontend),
            Step::RemoveMember { index, endpoint } => {
                if self.members.remove(&(*index, *endpoint)).is_some() {
                    self.member_counts[Family::of(endpoint.ip()) as usize] -= 1;
                }
            }
            Step::Grace => {}
            Step::Free { family, record, slots } => {
                self.records[*family as usize].release(*record, 1);
                if let Some((base, length)) = *slots {
                    self.free_row(*family, base, length);
                }
            }
            Step::Unname(index) => self.indexes.clear(*index),
            Step::SetSource(entry) => self.adopt_source(*entry),
            Step::RemoveSource(entry) => drop(self.sources.remove(entry)),
        }
    }

    /// Frees a row of slots, if no other record refers to it.
    fn free_row(&mut self, family: Family, base: u32, length: u32) {
        let rows = &mut self.rows[family as usize];
        let others = rows.get(&base).map_or(0, |records| records.saturating_sub(1));
        if others > 0 {
            rows.insert(base, others);
        } else {
            rows.remove(&base);
            self.slots[family as usize].release(base, length);
        }
    }

    fn forget(&mut self, frontend: &Frontend) {
        let Some(old) = self.placed.remove(frontend) else { return };
        self.counts[frontend.family() as usize] -= 1;
        self.frontends.remove(&(old.entry.index, *frontend));
    }

    /// Records an entry found in the maps at start, its record, and the slots that it refers to.
    pub fn adopt(&mut self, frontend: Frontend, Placed { entry, slot_base, record }: Placed) {
        self.record(&Step::Publish { frontend, entry, slot_base, record });
    }

    /// Records a Service port's name found in the maps at start.
    pub fn adopt_name(&mut self, index: u32, name: Arc<str>) {
        self.indexes.set(index, name);
    }

    /// Records the range found in the maps at start.
    pub const fn adopt_range(&mut self, range: Range) {
        self.range = range;
    }

    /// Records who may dial a frontend, as found in the maps at start.
    pub fn adopt_source(&mut self, entry: SourceEntry) {
        self.sources.insert(entry);
    }

    /// Records a member found in the maps at start.
    pub fn adopt_member(&mut self, index: u32, endpoint: SocketAddr, member: Member) {
        if self.members.insert((index, endpoint), member).is_none() {
            self.member_counts[Family::of(endpoint.ip()) as usize] += 1;
        }
    }
}

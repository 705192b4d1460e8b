//! A plan in the making: its steps by phase, and the room that they take.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use topo_lb_common::range::Range;
use tracing::error;

use super::desired::{Desired, Target};
use super::entry::Entry;
use super::extent::Extent;
use super::finished::Plan;
use super::installed::Installed;
use super::member::Member;
use super::share::{NO_POOLS, Pool, Pools, Room};
use super::slots::Slots;
use super::step::Step;
use crate::cluster::{Family, Frontend, ServiceId};

/// A Service port that stays or is new: its index and its desired members.
#[derive(Default)]
struct Port {
    index: u32,
    members: BTreeMap<SocketAddr, Member>,
}

/// Steps that add to the maps, by phase.
#[derive(Default)]
struct Additions {
    names: Vec<Step>,
    fills: Vec<Step>,
    members: Vec<Step>,
    publishes: Vec<Publish>,
}

/// An entry to publish; its record is chosen last.
struct Publish {
    frontend: Frontend,
    entry: Entry,
    slot_base: Option<u32>,
}

impl Additions {
    fn append(&mut self, mut more: Self) {
        self.names.append(&mut more.names);
        self.fills.append(&mut more.fills);
        self.members.append(&mut more.members);
        self.publishes.append(&mut more.publishes);
    }
}

/// What one Service needs. It goes into the draft only if all of it fits.
#[derive(Default)]
struct Part {
    additions: Additions,
    owned: Vec<Frontend>,
    new_frontends: [usize; 2],
    new_members: [usize; 2],
    /// Rows for which it takes slots, and the first slot of each.
    rows: Vec<(Family, u32, Entry)>,
    ports: BTreeMap<Arc<str>, Port>,
}

pub(super) struct Draft<'a> {
    installed: &'a Installed,
    free_indexes: Box<dyn Iterator<Item = u32> + 'a>,
    /// Copied when a Service takes some.
    slots: [Cow<'a, Slots>; 2],
    frontends: [usize; 2],
    members: [usize; 2],
    additions: Additions,
    owned: BTreeSet<Frontend>,
    surplus: BTreeSet<Frontend>,
    remove_members: Vec<Step>,
    unname: Vec<Step>,
    /// Maps in which no Service may take more room, by [`Pool::place`].
    closed: Pools,
    /// Indexes that were reserved for Services that did not fit.
    spare_indexes: Vec<u32>,
    /// Services that want much more than they have leave an eighth of the slots and members free.
    has_reserve: bool,
}

impl<'a> Draft<'a> {
    /// `has_reserve`: there shall be room for as many endpoints of each further Service as fit inline.
    pub(super) fn new(installed: &'a Installed, has_reserve: bool) -> Self {
        Self {
            installed,
            free_indexes: Box::new(installed.indexes().free()),
            slots: Family::BOTH.map(|family| Cow::Borrowed(installed.slots(family))),
            frontends: Family::BOTH.map(|family| installed.frontends_in(family)),
            members: Family::BOTH.map(|family| installed.members_in(family)),
            additions: Additions::default(),
            owned: BTreeSet::new(),
            surplus: BTreeSet::new(),
            remove_members: Vec::new(),
            unname: Vec::new(),
            closed: NO_POOLS,
            spare_indexes: Vec::new(),
            has_reserve,
        }
    }

    /// Refuses everything that takes more room in these maps from now on.
    pub(super) fn close(&mut self, pools: Pools) {
        self.closed.iter_mut().zip(pools).for_each(|(closed, more)| *closed |= more);
    }

    /// Writes a Service to this extent and removes its surplus; changes nothing if it does not
    /// fit.
    pub(super) fn settle(
        &mut self,
        desired: &Desired,
        id: &ServiceId,
        extent: Extent,
    ) -> Result<(), Pool> {
        let ports = self.place(desired, id, extent)?;
        self.retire(id, &ports);
        Ok(())
    }

    pub(super) fn remove(&mut self, id: &ServiceId) {
        self.retire(id, &BTreeMap::new());
    }

    /// Keeps what is installed for a Service, but removes frontends that it no longer owns and
    /// members that it no longer lists: their room may be what it lacks. Returns false, and changes
    /// nothing, if no frontend is left.
    pub(super) fn keep(&mut self, desired: &Desired, id: &ServiceId) -> bool {
        let targets = desired.targets(id);
        let served = targets.iter().filter(|target| !target.is_direct());
        let wanted: BTreeSet<Frontend> =
            served.flat_map(|target| desired.owned(id, target)).collect();
        let installed = self.installed;
        let split = |(name, index)| {
            let (kept, lost): (Vec<Frontend>, Vec<Frontend>) =
                installed.frontends_of(index).partition(|frontend| wanted.contains(frontend));
            (name, index, [kept, lost])
        };
        let ports: Vec<_> = installed.indexes().of_service(id).map(split).collect();
        if ports.iter().all(|(.., [kept, _])| kept.is_empty()) {
            return false;
        }
        for (name, index, [kept, lost]) in ports {
            if kept.is_empty() {
                self.remove_port(index);
            } else {
                let listed: BTreeSet<SocketAddr> = (targets.iter())
                    .filter(|target| target.name == *name)
                    .flat_map(|target| target.members().map(|(endpoint, _)| endpoint))
                    .collect();
                let stale =
                    installed.members_of(index).filter(|endpoint| !listed.contains(endpoint));
                self.remove_members
                    .extend(stale.map(|endpoint| Step::RemoveMember { index, endpoint }));
            }
            self.surplus.extend(lost);
            self.owned.extend(kept);
        }
        true
    }

    /// Entries for Services that want more; none if the map is closed.
    pub(super) fn free(&self, pool: Pool) -> u64 {
        if self.closed[pool.place()] {
            return 0;
        }
        let size = pool.size(self.installed.capacity());
        match pool {
            Pool::Ports => size.saturating_sub(
                (self.installed.indexes().len() + self.additions.names.len()) as u64,
            ),
            Pool::Frontends(family) => size.saturating_sub(self.frontends[family as usize] as u64),
            Pool::Slots(family) => u64::from(self.slots[family as usize].available()),
            Pool::Members(family) => size.saturating_sub(self.members[family as usize] as u64),
        }
    }

    /// Adds all that a Service needs, or nothing if it does not fit.
    fn place(
        &mut self,
        desired: &Desired,
        id: &ServiceId,
        extent: Extent,
    ) -> Result<BTreeMap<Arc<str>, Port>, Pool> {
        let mut part = Part::default();
        let has_place = |target: &&Target| extent == Extent::Whole || !target.is_direct();
        let fits = desired.targets(id).iter().filter(has_place).try_for_each(|target| {
            self.fit(target, extent, desired.owned(id, target).collect(), &mut part)
        });
        let fits = fits.and_then(|()| match self.overdrawn(desired, id, extent, &part) {
            Some(pool) => Err(pool),
            None => Ok(()),
        });
        if let Err(pool) = fits {
            for (family, base, entry) in part.rows {
                self.slots[family as usize].to_mut().release(base, entry.slots());
            }
            self.spare_indexes.extend(part.additions.names.iter().filter_map(|step| match step {
                Step::Name { index, .. } => Some(*index),
                _ => None,
            }));
            return Err(pool);
        }
        for family in [0, 1] {
            self.frontends[family] += part.new_frontends[family];
            self.members[family] += part.new_members[family];
        }
        self.additions.append(part.additions);
        for &Port { index, ref members } in part.ports.values() {
            let changed = members.iter().filter(|(endpoint, member)| {
                self.installed.member(index, **endpoint) != Some(**member)
            });
            self.additions.members.extend(changed.map(|(&endpoint, &member)| Step::SetMember {
                index,
                endpoint,
                member,
            }));
        }
        self.owned.extend(part.owned);
        Ok(part.ports)
    }

    /// The map in which a Service takes of the reserve what it may not: it wants more than twice of what
    /// it has there. A Service whose endpoints are replaced may.
    fn overdrawn(
        &self,
        desired: &Desired,
        id: &ServiceId,
        extent: Extent,
        part: &Part,
    ) -> Option<Pool> {
        // Without slots, it takes hardly more than a few endpoints.
        let is_whole = matches!(extent, Extent::Whole | Extent::WithoutDirect);
        if !self.has_reserve || !is_whole || part.rows.is_empty() {
            return None;
        }
        // Its slots are taken already.
        let takes = |pool: Pool| match pool {
            Pool::Slots(family) => part.rows.iter().any(|(of, ..)| *of == family).then_some(0),
            Pool::Members(family) => Some(part.new_members[family as usize]).filter(|new| *new > 0),
            Pool::Ports | Pool::Frontends(_) => None,
        };
        let mut low = Pool::ALL.into_iter().filter(|&pool| {
            let reserve = pool.size(self.installed.capacity()) / 8;
            takes(pool).is_some_and(|members| self.free(pool) < members as u64 + reserve)
        });
        low.find(|pool| {
            let (wanted, held) = (Room::wanted(desired, id), Room::held(self.installed, id));
            wanted.0[pool.place()] > 2 * held.0[pool.place()]
        })
    }

    /// The first slot of a row: of the same row of another frontend of its Service, or of free slots.
    fn row_of(&mut self, entry: &Entry, family: Family, part: &mut Part) -> Result<u32, Pool> {
        let mut own = part.rows.iter().rev();
        let own = own.find(|(of, _, other)| *of == family && other.has_row_of(entry));
        let installed = self.installed;
        let mut others = installed.frontends_of(entry.index).filter(|it| it.family() == family);
        let shared = own.map(|(_, base, _)| *base).or_else(|| {
            others.find_map(|other| {
                installed.get(other).filter(|placed| placed.entry.has_row_of(entry))?.slot_base
            })
        });
        if let Some(base) = shared {
            return Ok(base);
        }
        let pool = Pool::Slots(family);
        if self.closed[pool.place()] {
            return Err(pool);
        }
        let slots = self.slots[family as usize].to_mut();
        let base = slots.allocate(entry.slots()).ok_or(pool)?;
        part.additions.fills.push(Step::FillSlots { family, base, entry: entry.clone() });
        part.rows.push((family, base, entry.clone()));
        Ok(base)
    }

    fn fit(
        &mut self,
        target: &Target,
        extent: Extent,
        owned: Vec<Frontend>,
        part: &mut Part,
    ) -> Result<(), Pool> {
        let capacity = self.installed.capacity();
        let closed = self.closed;
        let open = |pool: Pool| if closed[pool.place()] { Err(pool) } else { Ok(()) };
        let index = match part.ports.get(&target.name) {
            Some(port) => port.index,
            None => match self.installed.indexes().get(&target.name) {
                Some(index) => index,
                None => {
                    open(Pool::Ports)?;
                    let spare = self.spare_indexes.pop().or_else(|| self.free_indexes.next());
                    let index = spare.ok_or(Pool::Ports)?;
                    part.additions.names.push(Step::Name { index, name: target.name.clone() });
                    index
                }
            },
        };
        let (entry, members) = extent.of(target, index, self.installed);
        for &frontend in &owned {
            let family = frontend.family();
            let before = self.installed.get(&frontend);
            if before.is_some_and(|placed| placed.entry == entry) {
                continue;
            }
            if before.is_none() {
                part.new_frontends[family as usize] += 1;
                let used = self.frontends[family as usize] + part.new_frontends[family as usize];
                open(Pool::Frontends(family))?;
                if used > capacity.services as usize {
                    return Err(Pool::Frontends(family));
                }
            }
            // A plan can go on as long as it has a record for each new frontend, and one more. Only
            // records that wait for a grace period can make this fail.
            let place = family as usize;
            let new = self.frontends[place] + part.new_frontends[place]
                - self.installed.frontends_in(family);
            if new >= self.installed.records(family).available() as usize {
                return Err(Pool::Frontends(family));
            }
            let slot_base = match entry.needs_slots(family) {
                true => Some(self.row_of(&entry, family, part)?),
                false => None,
            };
            part.additions.publishes.push(Publish { frontend, entry: entry.clone(), slot_base });
        }
        part.owned.extend(owned);
        let port = part.ports.entry(target.name.clone()).or_default();
        port.index = index;
        for (endpoint, member) in members {
            // Another target of this Service port may have listed it.
            if let Some(listed) = port.members.get_mut(&endpoint) {
                *listed = listed.or(member);
                continue;
            }
            port.members.insert(endpoint, member);
            if self.installed.member(index, endpoint).is_none() {
                let family = Family::of(endpoint.ip());
                open(Pool::Members(family))?;
                let new = &mut part.new_members[family as usize];
                *new += 1;
                if self.members[family as usize] + *new > capacity.members as usize {
                    return Err(Pool::Members(family));
                }
            }
        }
        Ok(())
    }

    /// Removes what is installed for a Service beyond these ports.
    fn retire(&mut self, id: &ServiceId, ports: &BTreeMap<Arc<str>, Port>) {
        let installed = self.installed;
        for (name, index) in installed.indexes().of_service(id) {
            self.surplus.extend(installed.frontends_of(index).copied());
            let Some(port) = ports.get(name) else {
                self.remove_port(index);
                continue;
            };
            let members = installed.members_of(index);
            let surplus = members.filter(|endpoint| !port.members.contains_key(endpoint));
            self.remove_members
                .extend(surplus.map(|endpoint| Step::RemoveMember { index, endpoint }));
        }
    }

    fn remove_port(&mut self, index: u32) {
        let members = self.installed.members_of(index);
        self.remove_members.extend(members.map(|endpoint| Step::RemoveMember { index, endpoint }));
        self.unname.push(Step::Unname(index));
    }

    /// Returns the plan, in which every Service has room.
    pub(super) fn finish(self) -> Plan {
        let withdrawn: BTreeSet<Frontend> = self.surplus.difference(&self.owned).copied().collect();
        let published = self.additions.publishes.iter().map(|publish| publish.frontend);
        let wide = published.fold(self.installed.range(), widened);
        let mut steps = Vec::new();
        if wide != self.installed.range() {
            steps.push(Step::SetRange(wide));
        }
        steps.extend(self.additions.names);
        steps.extend(self.additions.fills);
        steps.extend(self.additions.members);
        // Before the entries without these members: what finds the new entry does not find them.
        steps.extend(self.remove_members);
        let mut freed = publish(self.installed, self.additions.publishes, &mut steps);
        for frontend in &withdrawn {
            freed.extend(freed_by(self.installed, frontend));
            steps.push(Step::Withdraw(*frontend));
        }
        if !freed.is_empty() || !self.unname.is_empty() {
            steps.push(Step::Grace);
            steps.extend(freed);
            steps.extend(self.unname);
        }
        if !withdrawn.is_empty() {
            let narrow = (self.installed.outermost(&withdrawn))
                .chain(self.owned.iter())
                .copied()
                .fold(Range::EMPTY, widened);
            if narrow != wide {
                steps.push(Step::SetRange(narrow));
            }
        }
        Plan { steps, ..Plan::default() }
    }
}

/// Adds the steps that publish these entries. Returns the steps that free what they replace, to be
/// carried out after a grace period. If records run out, the steps wait for one in between.
fn publish(installed: &Installed, entries: Vec<Publish>, steps: &mut Vec<Step>) -> Vec<Step> {
    let mut records = Family::BOTH.map(|family| installed.records(family).each());
    let (mut released, mut freed) = ([Vec::new(), Vec::new()], Vec::new());
    for Publish { frontend, entry, slot_base } in entries {
        let family = frontend.family() as usize;
        let mut record = records[family].next().or_else(|| released[family].pop());
        if record.is_none() {
            steps.push(Step::Grace);
            for step in freed.drain(..) {
                if let Step::Free { family, record, .. } = step {
                    released[family as usize].push(record);
                }
                steps.push(step);
            }
            record = released[family].pop();
        }
        let Some(record) = record else {
            // `fit` has left one: those that are not free are new, or were just released.
            error!(%frontend, "it stays as it is, as no record is free: a defect of topo-lb, please report it");
            continue;
        };
        freed.extend(freed_by(installed, &frontend));
        steps.push(Step::Publish { frontend, entry, slot_base, record });
    }
    freed
}

/// The step that frees what a published frontend has now.
fn freed_by(installed: &Installed, frontend: &Frontend) -> Option<Step> {
    let placed = installed.get(frontend)?;
    let slots = placed.slot_base.map(|base| (base, placed.entry.slots()));
    Some(Step::Free { family: frontend.family(), record: placed.record, slots })
}

pub(super) fn widened(range: Range, frontend: Frontend) -> Range {
    match frontend.address {
        IpAddr::V4(address) => range.with4(address.octets()),
        IpAddr::V6(address) => {
            let [a, b, c, d, e, f, g, h, ..] = address.octets();
            range.with6([a, b, c, d, e, f, g, h])
        }
    }
}

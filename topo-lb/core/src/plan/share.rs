//! Fair shares of the maps among namespaces, for when not everything fits. Pure.
//!
//! Each map is divided among the namespaces that want entries in it, max-min fairly: a namespace
//! gets all that it wants, or as much as any other that wants more. An eighth of each map is not
//! divided, as new entries are written before old ones are removed.
//!
//! A Service is within its namespace's share if it fits into it, in every map, together with the
//! Services of its namespace that come before it. The order is: Services with endpoints in the
//! maps, then those that the maps refuse, then new ones; each by name.
//!
//! If strict Services without room are refused, they come first for frontends and Service ports,
//! which a refusal needs. If they need more than the share, no other Service of the namespace is
//! within it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::capacity::{Capacity, Shortage, WhenFull};
use super::desired::Desired;
use super::installed::Installed;
use crate::cluster::{Family, Frontend, ServiceId};

/// A map that can be full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// Service ports.
    Ports,
    /// Frontends.
    Frontends(Family),
    /// Endpoints of Services that do not fit inline.
    Slots(Family),
    /// Endpoints of UDP Services and of Services with session affinity.
    Members(Family),
}

impl Pool {
    /// All pools.
    pub const ALL: [Self; 7] = [
        Self::Ports,
        Self::Frontends(Family::V4),
        Self::Frontends(Family::V6),
        Self::Slots(Family::V4),
        Self::Slots(Family::V6),
        Self::Members(Family::V4),
        Self::Members(Family::V6),
    ];

    /// Position in [`ALL`](Self::ALL).
    pub const fn place(self) -> usize {
        match self {
            Self::Ports => 0,
            Self::Frontends(family) => 1 + family as usize,
            Self::Slots(family) => 3 + family as usize,
            Self::Members(family) => 5 + family as usize,
        }
    }

    /// The shortage of a Service that finds no room in this map.
    pub const fn shortage(self) -> Shortage {
        match self {
            Self::Ports | Self::Frontends(_) => Shortage::Services,
            Self::Slots(_) | Self::Members(_) => Shortage::Endpoints,
        }
    }

    /// Number of entries that it holds.
    pub const fn size(self, capacity: Capacity) -> u64 {
        (match self {
            Self::Ports | Self::Frontends(_) => capacity.services,
            Self::Slots(_) => capacity.slots,
            Self::Members(_) => capacity.members,
        }) as u64
    }
}

/// Some of the pools, by [`Pool::place`].
pub type Pools = [bool; Pool::ALL.len()];
/// None of them.
pub const NO_POOLS: Pools = [false; Pool::ALL.len()];

/// Numbers of entries, one for each of [`Pool::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room(pub [u64; Pool::ALL.len()]);

impl Room {
    /// No entries.
    pub const NONE: Self = Self([0; Pool::ALL.len()]);

    /// Adds `count` entries of this pool.
    pub const fn add(&mut self, pool: Pool, count: usize) {
        self.0[pool.place()] += count as u64;
    }

    fn plus(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
        self
    }

    /// Keeps only the pools of this shortage.
    fn only(mut self, shortage: Shortage) -> Self {
        for pool in Pool::ALL.into_iter().filter(|pool| pool.shortage() != shortage) {
            self.0[pool.place()] = 0;
        }
        self
    }

    /// Whether no pool has more entries than in `limit`.
    pub fn fits(&self, limit: &Self) -> bool {
        self.0.iter().zip(limit.0).all(|(count, limit)| *count <= limit)
    }

    /// Entries that a Service needs in full.
    pub fn wanted(desired: &Desired, id: &ServiceId) -> Self {
        let mut room = Self::default();
        let (mut names, mut rows) = (BTreeSet::new(), BTreeSet::new());
        for target in desired.targets(id) {
            if names.insert(&target.name) {
                room.add(Pool::Ports, 1);
            }
            let owned = desired.owned(id, target).count();
            let entry = target.entry(0);
            room.add(Pool::Frontends(target.family), owned);
            // Its frontends share a row.
            if owned > 0 && entry.needs_slots(target.family) {
                let length = entry.slots() as usize;
                let is_new = rows.insert((target.family, entry.row, entry.table));
                room.add(Pool::Slots(target.family), if is_new { length } else { 0 });
            }
            room.add(Pool::Members(target.family), target.members().count());
        }
        room
    }

    /// Free entries.
    pub fn free(installed: &Installed) -> Self {
        Self(Pool::ALL.map(|pool| {
            let used = match pool {
                Pool::Ports => installed.indexes().len(),
                Pool::Frontends(family) => installed.frontends_in(family),
                Pool::Slots(family) => return installed.slots(family).available().into(),
                Pool::Members(family) => installed.members_in(family),
            };
            pool.size(installed.capacity()).saturating_sub(used as u64)
        }))
    }

    /// At least so many free entries does a Service need for all that it wants. `has_reserve`: those that it
    /// has to leave to others are counted.
    pub fn lacking(
        desired: &Desired,
        installed: &Installed,
        id: &ServiceId,
        has_reserve: bool,
    ) -> Self {
        let (wanted, held) = (Self::wanted(desired, id), Self::held(installed, id));
        let (mut room, mut lists) = (Self::default(), BTreeMap::new());
        for target in desired.targets(id) {
            // Another Service may have had the frontend.
            let owned = desired.owned(id, target).filter(|it| installed.get(it).is_none());
            room.add(Pool::Frontends(target.family), owned.count());
            // Its targets may list the same endpoints.
            let longest: &mut usize = lists.entry((target.family, &target.name)).or_default();
            *longest = target.members().count().max(*longest);
        }
        let names: BTreeSet<&str> = lists.keys().map(|(_, name)| &***name).collect();
        let new = names.iter().filter(|name| installed.indexes().get(name).is_none());
        room.add(Pool::Ports, new.count());
        for ((family, _), longest) in lists {
            room.add(Pool::Members(family), longest);
        }
        for family in Family::BOTH {
            let [slots, members] = [Pool::Slots(family).place(), Pool::Members(family).place()];
            room.0[slots] = wanted.0[slots].saturating_sub(held.0[slots]);
            room.0[members] = room.0[members].saturating_sub(held.0[members]);
        }
        let takes_slots = room != room.without_slots();
        for pool in Pool::ALL.into_iter().filter(|pool| pool.shortage() == Shortage::Endpoints) {
            let at = pool.place();
            if has_reserve && takes_slots && room.0[at] > 0 && wanted.0[at] > 2 * held.0[at] {
                room.0[at] += pool.size(installed.capacity()) / 8;
            }
        }
        room
    }

    /// The same but for frontends.
    #[must_use]
    pub fn without_frontends(mut self) -> Self {
        for family in Family::BOTH {
            self.0[Pool::Frontends(family).place()] = 0;
        }
        self
    }

    /// The same but for slots.
    #[must_use]
    pub fn without_slots(mut self) -> Self {
        for family in Family::BOTH {
            self.0[Pool::Slots(family).place()] = 0;
        }
        self
    }

    /// Entries that a Service has.
    pub fn held(installed: &Installed, id: &ServiceId) -> Self {
        let (mut room, mut rows) = (Self::default(), BTreeSet::new());
        for (_, index) in installed.indexes().of_service(id) {
            room.add(Pool::Ports, 1);
            for frontend in installed.frontends_of(index) {
                room.add(Pool::Frontends(frontend.family()), 1);
                let Some(placed) = installed.get(frontend) else { continue };
                if let Some(base) = placed.slot_base
                    && rows.insert((frontend.family(), base))
                {
                    room.add(Pool::Slots(frontend.family()), placed.entry.slots() as usize);
                }
            }
            for endpoint in installed.members_of(index) {
                room.add(Pool::Members(Family::of(endpoint.ip())), 1);
            }
        }
        room
    }
}

/// Whether an installed frontend of a Service has endpoints.
pub fn serves(installed: &Installed, id: &ServiceId) -> bool {
    let routes = |frontend: &Frontend| installed.get(frontend).is_some_and(|it| it.entry.count > 0);
    installed.indexes().of_service(id).any(|(_, index)| installed.frontends_of(index).any(routes))
}

/// Whether the maps have a frontend of a Service, even one that refuses.
fn is_installed(installed: &Installed, id: &ServiceId) -> bool {
    let mut indexes = installed.indexes().of_service(id);
    indexes.any(|(_, index)| installed.frontends_of(index).next().is_some())
}

/// The order in which Services get room. A Service may take room only from a later rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rank {
    /// Within its namespace's share.
    Within,
    /// Over the share, but its frontends are within it. To be refused.
    RefusedWithin,
    /// Over the share, also with its frontends. To be refused.
    Refused,
    /// Over the share.
    Over,
}

/// The rank of each Service.
#[derive(Clone, Debug, Default)]
pub struct Ranks {
    namespaces: BTreeMap<Arc<str>, Namespace>,
    /// The most that a namespace may have.
    shares: Room,
}

/// The Services of a namespace.
#[derive(Clone, Debug, Default)]
struct Namespace {
    wanted: BTreeMap<ServiceId, Room>,
    /// All that they want.
    sum: Room,
    /// What those within the share want.
    taken: Room,
    /// The others stay over it while the share of no pool is as large as this.
    over: Room,
    /// Those that are not within the share.
    later: BTreeMap<ServiceId, Rank>,
}

impl Ranks {
    /// From what is desired and what is installed.
    pub fn new(desired: &Desired, installed: &Installed, when_full: WhenFull) -> Self {
        let mut ranks = Self::default();
        ranks.update(desired, installed, when_full, desired.services().collect());
        ranks
    }

    /// Takes in that these Services may want or have something else. Returns those whose ranks differ.
    pub fn update(
        &mut self,
        desired: &Desired,
        installed: &Installed,
        when_full: WhenFull,
        changed: BTreeSet<&ServiceId>,
    ) -> BTreeSet<ServiceId> {
        let mut concerned = BTreeSet::new();
        for id in changed {
            let namespace = self.namespaces.entry(Arc::clone(&id.namespace)).or_default();
            namespace.want(id, Room::wanted(desired, id), desired.targets(id).is_empty());
            concerned.insert(&*id.namespace);
        }
        self.shares = Room(Pool::ALL.map(|pool| {
            let size = pool.size(installed.capacity());
            let demands = self.namespaces.values().map(|it| it.sum.0[pool.place()]).collect();
            share(size - size / 8, demands)
        }));
        let (mut moved, shares) = (BTreeSet::new(), &self.shares);
        for (name, namespace) in &mut self.namespaces {
            if !concerned.contains(&**name) && namespace.stays(shares) {
                continue;
            }
            let before = std::mem::take(&mut namespace.later);
            namespace.rank(shares, desired, installed, when_full);
            let differs = |id: &&ServiceId| before.get(*id) != namespace.later.get(*id);
            moved.extend(before.keys().chain(namespace.later.keys()).filter(differs).cloned());
        }
        self.namespaces.retain(|_, namespace| !namespace.wanted.is_empty());
        moved
    }

    /// The rank of this Service.
    pub fn of(&self, id: &ServiceId) -> Rank {
        let Some(namespace) = self.namespaces.get(&id.namespace) else { return Rank::Over };
        match namespace.later.get(id) {
            None if namespace.wanted.contains_key(id) => Rank::Within,
            later => later.copied().unwrap_or(Rank::Over),
        }
    }
}

impl Namespace {
    /// A Service wants this, or is no more.
    fn want(&mut self, id: &ServiceId, room: Room, is_gone: bool) {
        let before = match is_gone {
            true => self.wanted.remove(id),
            false => self.wanted.insert(id.clone(), room),
        };
        self.sum = self.sum.plus(&room);
        let before = before.unwrap_or_default();
        self.sum.0.iter_mut().zip(before.0).for_each(|(sum, less)| *sum -= less);
    }

    /// Whether other shares change no rank.
    fn stays(&self, shares: &Room) -> bool {
        let is_below = |(share, over): (&u64, u64)| over == u64::MAX || *share < over;
        self.taken.fits(shares) && shares.0.iter().zip(self.over.0).all(is_below)
    }

    fn rank(
        &mut self,
        shares: &Room,
        desired: &Desired,
        installed: &Installed,
        when_full: WhenFull,
    ) {
        let (mut taken, mut over) = (Room::default(), Room([u64::MAX; Pool::ALL.len()]));
        let mut takes = |room: Room| {
            let sum = taken.plus(&room);
            let lacks = sum.0.iter().zip(shares.0).position(|(count, share)| *count > share);
            match lacks {
                None => taken = sum,
                Some(pool) => over.0[pool] = over.0[pool].min(sum.0[pool]),
            }
            lacks.is_none()
        };
        if self.sum.fits(shares) {
            takes(self.sum);
        } else {
            let mut wanted: Vec<(&ServiceId, Room)> =
                self.wanted.iter().map(|(id, room)| (id, *room)).collect();
            wanted.sort_by_cached_key(|(id, _)| {
                (!serves(installed, id), !is_installed(installed, id))
            });
            let mut is_full = false;
            for (id, room) in wanted.iter().filter(|(id, _)| when_full.refuses(desired, id)) {
                let rank = match takes(room.only(Shortage::Services)) {
                    true => Rank::RefusedWithin,
                    false => Rank::Refused,
                };
                is_full |= rank == Rank::Refused;
                self.later.insert((*id).clone(), rank);
            }
            for (id, room) in wanted {
                let is_within = match self.later.get(id) {
                    None => !is_full && takes(room),
                    Some(Rank::RefusedWithin) => takes(room.only(Shortage::Endpoints)),
                    Some(_) => continue,
                };
                if is_within {
                    self.later.remove(id);
                } else {
                    self.later.entry(id.clone()).or_insert(Rank::Over);
                }
            }
        }
        (self.taken, self.over) = (taken, over);
    }
}

/// The most that each may have of `capacity`, max-min fairly; `u64::MAX` if all is enough.
fn share(capacity: u64, mut demands: Vec<u64>) -> u64 {
    demands.sort_unstable();
    let mut left = capacity;
    for (done, demand) in demands.iter().enumerate() {
        let share = left / (demands.len() - done) as u64;
        if *demand > share {
            return share;
        }
        left -= demand;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_some_do_not_want_is_for_those_who_want_more() {
        assert_eq!(share(100, vec![10, 20, 30]), u64::MAX);
        assert_eq!(share(100, vec![100, 50, 50]), 33);
        assert_eq!(share(100, vec![10, 1_000, 1_000]), 45);
        assert_eq!(share(100, vec![1_000]), 100);
        assert_eq!(share(0, vec![1]), 0);
        assert_eq!(share(0, vec![]), u64::MAX);
    }

    proptest! {
        #[test]
        fn shares_fit_and_nobody_wants_what_is_left(
            capacity in 0u64..1_000,
            demands in prop::collection::vec(0u64..300, 1..20),
        ) {
            let most = share(capacity, demands.clone());
            let given: u64 = demands.iter().map(|demand| *demand.min(&most)).sum();
            prop_assert!(given <= capacity);
            // The rest is less than one entry for each namespace that wants more.
            let unmet = demands.iter().filter(|demand| **demand > most).count() as u64;
            prop_assert!(unmet == 0 || capacity - given < unmet);
        }
    }
}

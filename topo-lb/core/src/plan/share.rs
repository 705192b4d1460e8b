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

/// Numbers of entries, one for each of [`Pool::ALL`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room(pub [u64; Pool::ALL.len()]);

impl Room {
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

    fn fits(&self, limit: &Self) -> bool {
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
                let length = entry.row.len();
                let is_new = rows.insert((target.family, entry.row));
                room.add(Pool::Slots(target.family), if is_new { length } else { 0 });
            }
            room.add(Pool::Members(target.family), target.members().count());
        }
        room
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
                    room.add(Pool::Slots(frontend.family()), placed.entry.row.len());
                }
            }
            for (endpoint, _) in installed.members_of(index) {
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
pub struct Ranks(BTreeMap<ServiceId, Rank>);

impl Ranks {
    /// From what is desired and what is installed.
    pub fn new(desired: &Desired, installed: &Installed, when_full: WhenFull) -> Self {
        let mut wanted: Vec<(&ServiceId, Room)> =
            desired.services().map(|id| (id, Room::wanted(desired, id))).collect();
        let mut demands: BTreeMap<&str, Room> = BTreeMap::new();
        for (id, room) in &wanted {
            let demand = demands.entry(&id.namespace).or_default();
            *demand = demand.plus(room);
        }
        let shares = Room(Pool::ALL.map(|pool| {
            let size = pool.size(installed.capacity());
            let demands = demands.values().map(|demand| demand.0[pool.place()]).collect();
            share(size - size / 8, demands)
        }));
        wanted.sort_by_cached_key(|(id, _)| (!serves(installed, id), !is_installed(installed, id)));
        let mut taken: BTreeMap<&str, Room> = BTreeMap::new();
        let mut takes = |namespace, room: Room| {
            let taken = taken.entry(namespace).or_default();
            let sum = taken.plus(&room);
            let fits = sum.fits(&shares);
            if fits {
                *taken = sum;
            }
            fits
        };
        let mut ranks = BTreeMap::new();
        let mut full = BTreeSet::new();
        for (id, room) in wanted.iter().filter(|(id, _)| when_full.refuses(desired, id)) {
            let rank = if takes(&*id.namespace, room.only(Shortage::Services)) {
                Rank::RefusedWithin
            } else {
                full.insert(&id.namespace);
                Rank::Refused
            };
            ranks.insert((*id).clone(), rank);
        }
        for (id, room) in wanted {
            let rest = match ranks.get(id) {
                None if full.contains(&id.namespace) => continue,
                None => room,
                Some(Rank::RefusedWithin) => room.only(Shortage::Endpoints),
                Some(_) => continue,
            };
            if takes(&*id.namespace, rest) {
                ranks.insert(id.clone(), Rank::Within);
            }
        }
        Self(ranks)
    }

    /// The rank of this Service.
    pub fn of(&self, id: &ServiceId) -> Rank {
        self.0.get(id).copied().unwrap_or(Rank::Over)
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

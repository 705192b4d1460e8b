//! Divides the maps when Services do not all fit. Pure.
//!
//! * A Service within its namespace's share ([`share`]) gets its room first. While one lacks room,
//!   Services over their shares get no more of what it lacks, and give up what they have, the
//!   newest first.
//! * A Service that has endpoints in the maps does not lose them when it lacks room: it gets as
//!   many of its new endpoints as fit inline, or keeps its last good ones.
//! * Where no kube-proxy is there to take it, the same holds for a new Service, and an eighth of the
//!   slots and members is for that: for others, and for changes of those in the maps.
//! * Any other Service without room is left to kube-proxy, or is refused if its policy is strict and the
//!   agent is configured so. A refusal needs a frontend: Services that are not strict give up
//!   theirs for it, unless they are within their namespace's share.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::{Lack, Meanwhile, Shortage, WhenFull};
use super::desired::Desired;
use super::draft::Draft;
use super::extent::Extent;
use super::indexes::service_of;
use super::installed::Installed;
use super::share::{self, Pool, Rank, Ranks, Room};
use super::step::Plan;
use crate::cluster::ServiceId;

/// Decides how scarce room is divided.
#[derive(Clone, Debug, Default)]
pub struct Ration {
    when_full: WhenFull,
    /// Where the choice of endpoints starts if not all fit; differs per node, so choices differ.
    first: u64,
    /// No kube-proxy takes what is left to it.
    narrows: bool,
    /// Fixed while the desired state is: so plans that make room for one another come to an end.
    ranks: Option<Ranks>,
}

impl Ration {
    /// With this rule, and this node's number.
    #[must_use]
    pub const fn new(when_full: WhenFull, first: u64) -> Self {
        Self { when_full, first, narrows: false, ranks: None }
    }

    /// The same with another rule for Services without room.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// The same where no kube-proxy takes Services without room: new ones get a few endpoints, too.
    #[must_use]
    pub fn narrowing(self, narrows: bool) -> Self {
        Self { narrows, ..self }
    }

    pub(super) const fn narrows(&self) -> bool {
        self.narrows
    }

    /// Discards the computed shares. Call it when the desired state has changed.
    pub fn renew(&mut self) {
        self.ranks = None;
    }
}

/// As [`diff::plan`](super::diff::plan), for when not everything fits.
pub(super) fn plan(
    desired: &Desired,
    installed: &Installed,
    touched: &BTreeSet<ServiceId>,
    ration: &mut Ration,
) -> Plan {
    let when_full = ration.when_full;
    let ranks = &*ration.ranks.get_or_insert_with(|| Ranks::new(desired, installed, when_full));
    let refuses = |id: &ServiceId| when_full.refuses(desired, id);
    let (goes, stays): (Vec<_>, Vec<_>) =
        touched.iter().partition(|id| desired.targets(id).is_empty());
    let of_rank = |rank| stays.iter().copied().filter(|id| ranks.of(id) == rank).collect();
    let mut giving = Giving {
        desired,
        installed,
        first: ration.first,
        narrows: ration.narrows,
        draft: Draft::new(installed, ration.narrows),
        unprogrammed: BTreeMap::new(),
        wanting: Vec::new(),
    };

    for id in goes {
        giving.draft.remove(id);
    }
    let mut victims = BTreeMap::new();
    for rank in [Rank::Within, Rank::RefusedWithin, Rank::Refused] {
        let others_wait = !giving.wanting.is_empty();
        for id in in_turns(installed, of_rank(rank)) {
            if victims.contains_key(id) {
                continue;
            }
            if let Some((pool, meanwhile)) = giving.give(id, refuses(id))
                && !others_wait
                && (rank == Rank::Within || leaks(pool, meanwhile))
            {
                giving.wanting.push((id.clone(), pool));
            }
        }
        if !others_wait {
            victims = giving.victims(rank, ranks);
            giving.close();
        }
    }
    for (id, &pool) in &victims {
        giving.take(id, pool, refuses(id));
    }
    for id in in_turns(installed, of_rank(Rank::Over)) {
        if !victims.contains_key(id) {
            giving.give(id, false);
        }
    }
    giving.draft.finish(giving.unprogrammed)
}

/// Whether kube-proxy gets connections to a Service, or to its new ports, as `pool` lacks room.
fn leaks(pool: Pool, meanwhile: Meanwhile) -> bool {
    match meanwhile {
        Meanwhile::KubeProxy => true,
        Meanwhile::LastGood => pool.shortage() == Shortage::Services,
        Meanwhile::Narrowed | Meanwhile::Refused => false,
    }
}

struct Giving<'a> {
    desired: &'a Desired,
    installed: &'a Installed,
    first: u64,
    narrows: bool,
    draft: Draft<'a>,
    unprogrammed: BTreeMap<ServiceId, Lack>,
    /// Services for which others give up room, and in which map.
    wanting: Vec<(ServiceId, Pool)>,
}

impl Giving<'_> {
    /// Gives a Service all that it wants, or else what fits. In that case, returns the map that
    /// lacks room, and what the Service's connections do.
    fn give(&mut self, id: &ServiceId, refuses: bool) -> Option<(Pool, Meanwhile)> {
        let pool = self.draft.settle(self.desired, id, Extent::Whole).err()?;
        let (pool, meanwhile) = self.give_less(id, pool, refuses);
        self.unprogrammed.insert(id.clone(), Lack { of: pool.shortage(), meanwhile });
        Some((pool, meanwhile))
    }

    /// Gives a Service without room in `pool` what fits. Returns the map that lacks room for more.
    fn give_less(&mut self, id: &ServiceId, pool: Pool, refuses: bool) -> (Pool, Meanwhile) {
        let (desired, serves) = (self.desired, share::serves(self.installed, id));
        if desired.refuses(id) && self.draft.settle(desired, id, Extent::Refusing).is_ok() {
            return (pool, Meanwhile::Refused);
        }
        let mut less = pool;
        if (serves || self.narrows) && pool.shortage() == Shortage::Endpoints {
            let first = self.first;
            let extents = [
                serves.then_some(Extent::Narrow(first)),
                self.narrows.then_some(Extent::Few { first, keeps: true }),
                serves.then_some(Extent::Known(first)),
            ];
            for narrow in extents.into_iter().flatten() {
                match self.draft.settle(desired, id, narrow) {
                    Ok(()) => return (pool, Meanwhile::Narrowed),
                    Err(lacking) => less = lacking,
                }
            }
        }
        if (serves || desired.is_strict(id) && !refuses) && self.draft.keep(desired, id) {
            return (less, Meanwhile::LastGood);
        }
        let lacking = if refuses {
            match self.draft.settle(desired, id, Extent::Refusing) {
                Ok(()) => return (pool, Meanwhile::Refused),
                Err(pool) => pool,
            }
        } else {
            pool
        };
        self.draft.remove(id);
        (lacking, Meanwhile::KubeProxy)
    }

    /// Takes from a Service over its share its room in `pool`.
    fn take(&mut self, id: &ServiceId, pool: Pool, refuses: bool) {
        let less = match pool {
            Pool::Slots(_) => Some((Extent::Narrow(self.first), Meanwhile::Narrowed)),
            Pool::Members(_) if self.narrows => {
                let few = Extent::Few { first: self.first, keeps: false };
                Some((few, Meanwhile::Narrowed))
            }
            Pool::Members(_) if refuses => Some((Extent::Refusing, Meanwhile::Refused)),
            _ => None,
        };
        let meanwhile = match less {
            Some((extent, meanwhile)) if self.draft.settle(self.desired, id, extent).is_ok() => {
                meanwhile
            }
            _ => {
                self.draft.remove(id);
                Meanwhile::KubeProxy
            }
        };
        self.unprogrammed.insert(id.clone(), Lack { of: pool.shortage(), meanwhile });
    }

    /// The Services that give up room for those of rank `wanting`, and in which map: the newest
    /// first. A Service that is to be refused needs its frontends, and gives them up last.
    fn victims(&self, wanting: Rank, ranks: &Ranks) -> BTreeMap<ServiceId, Pool> {
        if self.wanting.is_empty() {
            return BTreeMap::new();
        }
        let mut short = Room::default();
        for (id, pool) in &self.wanting {
            let (wanted, held) = (Room::wanted(self.desired, id), Room::held(self.installed, id));
            // New endpoints need slots of their own beside those of the old ones.
            let held = if matches!(pool, Pool::Slots(_)) { 0 } else { held.0[pool.place()] };
            short.0[pool.place()] += wanted.0[pool.place()].saturating_sub(held).max(1);
        }
        for pool in Pool::ALL {
            let short = &mut short.0[pool.place()];
            // Free slots may not be adjacent.
            *short = short.saturating_sub(self.draft.free(pool)).max(u64::from(*short > 0));
        }
        let mut victims = BTreeMap::new();
        for last in [Rank::Over, Rank::Refused, Rank::RefusedWithin] {
            let indexes: Vec<_> = self.installed.indexes().iter().collect();
            for (_, name) in indexes.into_iter().rev() {
                let Some(id) = service_of(name).filter(|id| {
                    !self.desired.targets(id).is_empty()
                        && ranks.of(id) > wanting
                        && !victims.contains_key(id)
                }) else {
                    continue;
                };
                let held = Room::held(self.installed, &id);
                let gives = |pool: &Pool| short.0[pool.place()] > 0 && held.0[pool.place()] > 0;
                let Some(pool) = Pool::ALL.into_iter().find(gives) else { continue };
                if ranks.of(&id) < last && pool.shortage() == Shortage::Services {
                    continue;
                }
                for pool in Pool::ALL {
                    let short = &mut short.0[pool.place()];
                    *short = short.saturating_sub(held.0[pool.place()]);
                }
                victims.insert(id, pool);
            }
        }
        victims
    }

    /// Closes the maps that Services in `wanting` need to all others.
    fn close(&mut self) {
        for (id, lacking) in &self.wanting {
            let wanted = Room::wanted(self.desired, id);
            for pool in Pool::ALL {
                if pool == *lacking || wanted.0[pool.place()] > 0 {
                    self.draft.close(pool);
                }
            }
        }
    }
}

/// Services with endpoints in the maps first; then the first of each namespace, the second, …
fn in_turns<'a>(installed: &Installed, ids: Vec<&'a ServiceId>) -> Vec<&'a ServiceId> {
    let mut before: BTreeMap<&str, usize> = BTreeMap::new();
    let mut turns: Vec<_> = ids
        .into_iter()
        .map(|id| {
            let turn = before.entry(&id.namespace).or_default();
            *turn += 1;
            (!share::serves(installed, id), *turn, id)
        })
        .collect();
    turns.sort();
    turns.into_iter().map(|(.., id)| id).collect()
}

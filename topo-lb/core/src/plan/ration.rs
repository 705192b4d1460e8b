//! Divides the maps when Services do not all fit. Pure.
//!
//! * A Service within its namespace's share ([`share`]) gets its room first. While one lacks room,
//!   Services over their shares get no more of what it lacks, and give up what they have, the
//!   newest first.
//! * A Service that has endpoints in the maps does not lose them when it lacks room: it gets as
//!   many of its new endpoints as fit inline, or keeps its last good ones.
//! * Where no kube-proxy is there to take it, the same holds for a new Service, and an eighth of the
//!   slots and members is for that: for others, and for changes of those in the maps.
//! * A plan leaves Services without room as they are until they change, or can get more ([`waiting`](super::waiting)):
//!   what is larger than its share does not slow the changes of others.
//! * Any other Service without room is left to kube-proxy, or is refused if its policy is strict and the
//!   agent is configured so. A refusal needs a frontend: Services that are not strict give up
//!   theirs for it, unless they are within their namespace's share.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::{Lack, Meanwhile, Shortage, WhenFull};
use super::desired::{Desired, Target};
use super::draft::Draft;
use super::extent::Extent;
use super::finished::Plan;
use super::indexes::service_of;
use super::installed::Installed;
use super::share::{self, Pool, Rank, Ranks, Room};
use super::waiting::Wait;
use crate::cluster::{Family, ServiceId};

/// Decides how scarce room is divided, and remembers who lacks it.
#[derive(Clone, Debug, Default)]
pub struct Ration {
    when_full: WhenFull,
    /// Where the choice of endpoints starts if not all fit; differs per node, so choices differ.
    first: u64,
    /// No kube-proxy takes what is left to it.
    narrows: bool,
    /// Fixed while the desired state is: so plans that make room for one another come to an end.
    /// `None` while no Service lacks room.
    ranks: Option<Ranks>,
    /// Services whose desired state has changed since.
    changed: BTreeSet<ServiceId>,
    /// Services whose installed state has changed since.
    planned: BTreeSet<ServiceId>,
    /// Services that lack room, by the plans that were carried out.
    unprogrammed: BTreeMap<ServiceId, Lack>,
    /// For what each of them waits.
    waiting: BTreeMap<ServiceId, Wait>,
    /// Services have given up room since those that want it were tried.
    given_up: bool,
}

impl Ration {
    /// With this rule, and this node's number.
    #[must_use]
    pub fn new(when_full: WhenFull, first: u64) -> Self {
        Self { when_full, first, ..Self::default() }
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

    /// Who gets the connections of a Service of which the maps have nothing.
    pub(super) const fn left_out(&self) -> Meanwhile {
        left_out(self.narrows)
    }

    /// The desired state of these Services has changed.
    pub fn renew<'a>(&mut self, changed: impl IntoIterator<Item = &'a ServiceId>) {
        if self.ranks.is_some() {
            self.changed.extend(changed.into_iter().cloned());
        }
    }

    /// A plan was carried out, which was made for these Services.
    pub fn carried_out(&mut self, touched: BTreeSet<ServiceId>, plan: &Plan) {
        for id in &touched {
            self.unprogrammed.remove(id);
            self.waiting.remove(id);
        }
        self.unprogrammed.extend(plan.unprogrammed.clone());
        self.waiting.extend(plan.waiting.clone());
        self.given_up |= plan.gives_up;
        if self.waiting.is_empty() {
            (self.ranks, self.changed, self.planned, self.given_up) = Default::default();
        } else {
            self.planned.extend(touched);
            self.planned.extend(plan.waiting.keys().cloned());
        }
    }

    /// Services that lack room.
    pub const fn unprogrammed(&self) -> &BTreeMap<ServiceId, Lack> {
        &self.unprogrammed
    }

    /// Whether a Service waits for what a plan frees after a grace period.
    pub fn awaits(&self, plan: &Plan) -> bool {
        let slots = Family::BOTH.map(Pool::Slots);
        let lacks_slots = |wait: &Wait| slots.iter().any(|pool| wait.lacked(*pool));
        !plan.waiting.is_empty() || plan.frees_slots() && self.waiting.values().any(lacks_slots)
    }

    /// The Services without room that another plan can give more: their shares have changed, or room was
    /// freed. All others would stay as they are, and may be so large that trying takes seconds.
    pub fn due(&mut self, desired: &Desired, installed: &Installed) -> BTreeSet<ServiceId> {
        if self.waiting.is_empty() {
            return BTreeSet::new();
        }
        let moved = self.renewed(desired, installed);
        let ranks = self.ranks.as_ref();
        let rank = |id| ranks.map_or(Rank::Over, |ranks| ranks.of(id));
        // Who is over its share now gives up room; what somebody has given up may be adjacent to what was free.
        let is_their_turn = std::mem::take(&mut self.given_up) || !moved.is_empty();
        let concerned = |(id, wait): &(&ServiceId, &Wait)| {
            is_their_turn && wait.is_wanting() || moved.contains(*id)
        };
        let mut due: BTreeSet<ServiceId> =
            self.waiting.iter().filter(concerned).map(|(id, _)| id.clone()).collect();
        let closing: Vec<_> =
            self.wanting(&due).map(|(id, wait)| (rank(id), wait.closes())).collect();
        let is_open = |id, wait: &Wait| {
            let earlier = closing.iter().filter(|(other, _)| *other < rank(id));
            wait.is_open(earlier.map(|(_, closed)| closed))
        };
        let mut free = Room::free(installed);
        let mut by_rank: BTreeMap<Rank, Vec<&ServiceId>> = BTreeMap::new();
        for (id, wait) in &self.waiting {
            if wait.is_due(&free) && !due.contains(id) && is_open(id, wait) {
                by_rank.entry(rank(id)).or_default().push(id);
            }
        }
        // As many as may fit, or each freed entry would have all of them tried.
        for id in by_rank.into_values().flat_map(|ids| in_turns(installed, ids)) {
            let wait = &self.waiting[id];
            if wait.is_due(&free) {
                wait.take(&mut free);
                due.insert(id.clone());
            }
        }
        due
    }

    /// The Services for which others give up room, without those that are planned now.
    pub(super) fn wanting<'a>(
        &'a self,
        touched: &'a BTreeSet<ServiceId>,
    ) -> impl Iterator<Item = (&'a ServiceId, &'a Wait)> {
        let waiting = self.waiting.iter();
        waiting.filter(|(id, wait)| wait.is_wanting() && !touched.contains(*id))
    }

    /// Computes the ranks if the desired state has changed. Returns the Services whose ranks differ.
    fn renewed(&mut self, desired: &Desired, installed: &Installed) -> BTreeSet<ServiceId> {
        let when_full = self.when_full;
        match &mut self.ranks {
            None => {
                self.ranks = Some(Ranks::new(desired, installed, when_full));
                BTreeSet::new()
            }
            Some(_) if self.changed.is_empty() => BTreeSet::new(),
            Some(ranks) => {
                let changed = self.changed.union(&self.planned).collect();
                let moved = ranks.update(desired, installed, when_full, changed);
                (self.changed, self.planned) = Default::default();
                moved
            }
        }
    }
}

/// As [`diff::plan`](super::diff::plan), for when not everything fits.
pub(super) fn plan(
    desired: &Desired,
    installed: &Installed,
    touched: &BTreeSet<ServiceId>,
    ration: &mut Ration,
) -> Plan {
    ration.renewed(desired, installed);
    let (ration, when_full) = (&*ration, ration.when_full);
    let rank = |id: &ServiceId| ration.ranks.as_ref().map_or(Rank::Over, |ranks| ranks.of(id));
    let refuses = |id: &ServiceId| when_full.refuses(desired, id);
    let (goes, stays): (Vec<_>, Vec<_>) =
        touched.iter().partition(|id| desired.targets(id).is_empty());
    let of_rank = |wanted| stays.iter().copied().filter(|id| rank(id) == wanted).collect();
    let mut giving = Giving {
        desired,
        installed,
        first: ration.first,
        narrows: ration.narrows,
        draft: Draft::new(installed, ration.narrows),
        unprogrammed: BTreeMap::new(),
        waiting: BTreeMap::new(),
        wanting: Vec::new(),
    };

    for id in goes {
        giving.draft.remove(id);
    }
    let mut victims = BTreeMap::new();
    let mut others_wait = false;
    for of in [Rank::Within, Rank::RefusedWithin, Rank::Refused] {
        for id in in_turns(installed, of_rank(of)) {
            if victims.contains_key(id) {
                continue;
            }
            if let Some((pool, meanwhile)) = giving.give(id, refuses(id))
                && (of == Rank::Within || leaks(pool, meanwhile))
            {
                match giving.waiting.get_mut(id).filter(|_| others_wait) {
                    Some(wait) => wait.queue(),
                    None => giving.wanting.push((id.clone(), pool)),
                }
            }
        }
        if !others_wait {
            victims = giving.victims(of, &rank, &refuses);
            giving.close();
            others_wait = !giving.wanting.is_empty();
        }
        for (_, wait) in ration.wanting(touched).filter(|(id, _)| rank(id) == of) {
            giving.draft.close(wait.closes());
            others_wait = true;
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
    let Giving { draft, unprogrammed, waiting, .. } = giving;
    let gives_up = victims.iter().any(|(id, pool)| {
        let before = ration.waiting.get(id);
        !before.is_some_and(|wait| wait.has_given(*pool))
    });
    Plan { unprogrammed, waiting, gives_up, ..draft.finish() }
}

/// Who gets the connections of a Service of which the maps have nothing.
const fn left_out(narrows: bool) -> Meanwhile {
    if narrows { Meanwhile::Nobody } else { Meanwhile::KubeProxy }
}

/// Whether kube-proxy gets connections to a Service, or to its new ports, as `pool` lacks room.
fn leaks(pool: Pool, meanwhile: Meanwhile) -> bool {
    match meanwhile {
        Meanwhile::KubeProxy | Meanwhile::Nobody => true,
        Meanwhile::LastGood => pool.shortage() == Shortage::Services,
        Meanwhile::Narrowed | Meanwhile::Refused | Meanwhile::DirectDials => false,
    }
}

struct Giving<'a> {
    desired: &'a Desired,
    installed: &'a Installed,
    first: u64,
    narrows: bool,
    draft: Draft<'a>,
    unprogrammed: BTreeMap<ServiceId, Lack>,
    waiting: BTreeMap<ServiceId, Wait>,
    /// Services for which others give up room, and in which map.
    wanting: Vec<(ServiceId, Pool)>,
}

impl Giving<'_> {
    /// Gives a Service all that it wants, or else what fits. In that case, returns the map that
    /// lacks room, and what the Service's connections do.
    fn give(&mut self, id: &ServiceId, refuses: bool) -> Option<(Pool, Meanwhile)> {
        let mut wait = Wait::new();
        let pool = self.settle(id, Extent::Whole, &mut wait).err()?;
        let (pool, meanwhile) = self.give_less(id, pool, refuses, &mut wait);
        self.waiting.insert(id.clone(), wait);
        self.unprogrammed.insert(id.clone(), Lack { of: pool.shortage(), meanwhile });
        Some((pool, meanwhile))
    }

    /// Writes a Service to this extent, or notes what it lacks.
    fn settle(&mut self, id: &ServiceId, extent: Extent, wait: &mut Wait) -> Result<(), Pool> {
        let settled = self.draft.settle(self.desired, id, extent);
        if let Err(pool) = settled {
            let lacking = |reserve| Room::lacking(self.desired, self.installed, id, reserve);
            let needs = match extent {
                Extent::Whole => lacking(self.narrows),
                Extent::WithoutDirect => lacking(self.narrows).without_frontends(),
                Extent::Narrow(_) => lacking(false).without_slots(),
                _ => Room::NONE,
            };
            wait.lacks(pool, self.draft.free(pool), needs);
        }
        settled
    }

    /// Gives a Service without room in `pool` what fits. Returns the map that lacks room for more.
    fn give_less(
        &mut self,
        id: &ServiceId,
        pool: Pool,
        refuses: bool,
        wait: &mut Wait,
    ) -> (Pool, Meanwhile) {
        let (desired, serves) = (self.desired, share::serves(self.installed, id));
        let mut pool = pool;
        if desired.has_direct(id) {
            match self.settle(id, Extent::WithoutDirect, wait) {
                Ok(()) => return (pool, Meanwhile::DirectDials),
                Err(lacking) => pool = lacking,
            }
        }
        if desired.refuses(id) && self.settle(id, Extent::Refusing, wait).is_ok() {
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
                match self.settle(id, narrow, wait) {
                    Ok(()) => return (pool, Meanwhile::Narrowed),
                    Err(lacking) => less = lacking,
                }
            }
        }
        if (serves || desired.is_strict(id) && !refuses) && self.draft.keep(desired, id) {
            return (less, Meanwhile::LastGood);
        }
        let lacking = if refuses {
            match self.settle(id, Extent::Refusing, wait) {
                Ok(()) => return (pool, Meanwhile::Refused),
                Err(pool) => pool,
            }
        } else {
            pool
        };
        self.draft.remove(id);
        (lacking, left_out(self.narrows))
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
                match self.desired.targets(id).iter().all(Target::is_direct) {
                    true => Meanwhile::DirectDials,
                    false => left_out(self.narrows),
                }
            }
        };
        let mut wait = Wait::new();
        wait.gives(pool);
        self.waiting.insert(id.clone(), wait);
        self.unprogrammed.insert(id.clone(), Lack { of: pool.shortage(), meanwhile });
    }

    /// The Services that give up room for those of rank `wanting`, and in which map: the newest
    /// first. A Service that is to be refused needs its frontends, and gives them up last.
    fn victims(
        &self,
        wanting: Rank,
        rank: &impl Fn(&ServiceId) -> Rank,
        refuses: &impl Fn(&ServiceId) -> bool,
    ) -> BTreeMap<ServiceId, Pool> {
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
                        && rank(id) > wanting
                        && !victims.contains_key(id)
                }) else {
                    continue;
                };
                let held = Room::held(self.installed, &id);
                let gives = |pool: &Pool| short.0[pool.place()] > 0 && held.0[pool.place()] > 0;
                // Who gives up members gives up slots, too.
                let [ports, v4, v6, slots4, slots6, members4, members6] = Pool::ALL;
                let pools = [ports, v4, v6, members4, members6, slots4, slots6];
                let Some(pool) = pools.into_iter().find(gives) else { continue };
                if rank(&id) < last && pool.shortage() == Shortage::Services {
                    continue;
                }
                // As `take` does it.
                let gives = |other: &Pool| match pool {
                    Pool::Slots(_) => matches!(other, Pool::Slots(_)),
                    Pool::Members(_) if self.narrows || refuses(&id) => {
                        other.shortage() == Shortage::Endpoints
                    }
                    _ => true,
                };
                for pool in Pool::ALL.into_iter().filter(gives) {
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
            let pools = Pool::ALL.map(|pool| pool == *lacking || wanted.0[pool.place()] > 0);
            self.draft.close(pools);
            if let Some(wait) = self.waiting.get_mut(id) {
                wait.close(pools);
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

//! What becomes of Services that do not all fit into the maps. Pure.
//!
//! * A Service within its namespace's share ([`share`]) gets its room first. While one
//!   lacks room, those over their shares take no more of what it wants, and give up what they have, the
//!   newest first.
//! * A Service that has endpoints in the maps does not lose them for want of room of its own: it gets as
//!   many of its new endpoints as fit inline, or keeps its last good ones.
//! * What is left out is left to kube-proxy, or, where its policy is strict and the agent was told so,
//!   refused. A strict Service goes before one that is not, as a refusal needs a frontend.

use std::collections::{BTreeMap, BTreeSet};

use super::capacity::{Lack, Meanwhile, Shortage, WhenFull};
use super::desired::Desired;
use super::diff::service_of;
use super::draft::{Draft, Value};
use super::installed::Installed;
use super::share::{self, Pool, Room};
use super::step::Plan;
use crate::cluster::ServiceId;

/// How scarce room is given out.
#[derive(Clone, Debug, Default)]
pub struct Ration {
    when_full: WhenFull,
    /// Which endpoints a Service gets where not all fit: another number on each node, so that nodes
    /// choose different ones.
    first: u64,
    /// The Services within their shares. Fixed while what is desired is: plans that make room for one
    /// another then come to an end.
    within: Option<BTreeSet<ServiceId>>,
}

impl Ration {
    /// By these rules, on the node of this number.
    #[must_use]
    pub const fn new(when_full: WhenFull, first: u64) -> Self {
        Self { when_full, first, within: None }
    }

    /// By another rule for what is left out.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Has the shares computed anew: something else is desired.
    pub fn renew(&mut self) {
        self.within = None;
    }
}

/// As [`diff::plan`](super::diff::plan), where not everything fits.
pub(super) fn plan(
    desired: &Desired,
    installed: &Installed,
    touched: &BTreeSet<ServiceId>,
    ration: &mut Ration,
) -> Plan {
    let within = &*ration.within.get_or_insert_with(|| share::within(desired, installed));
    let refuses =
        |id: &ServiceId| ration.when_full == WhenFull::RefuseStrict && desired.is_strict(id);
    let (goes, stays): (Vec<_>, Vec<_>) =
        touched.iter().partition(|id| desired.targets(id).is_empty());
    let (inside, over): (Vec<_>, Vec<_>) = stays.into_iter().partition(|id| within.contains(*id));
    let (strict, soft): (Vec<_>, Vec<_>) = over.into_iter().partition(|id| refuses(id));
    let mut giving = Giving {
        desired,
        installed,
        first: ration.first,
        draft: Draft::new(installed),
        left_out: BTreeMap::new(),
        wanting: Vec::new(),
    };

    for id in goes {
        giving.draft.remove(id);
    }
    for id in in_turns(installed, inside) {
        if let Some((pool, _)) = giving.give(id, refuses(id)) {
            giving.wanting.push((id.clone(), pool));
        }
    }
    let is_over = |id: &ServiceId| !within.contains(id);
    let mut victims = giving.victims(is_over, refuses);
    giving.close();
    let inside_waits = !giving.wanting.is_empty();
    for id in in_turns(installed, strict) {
        if victims.contains_key(id) {
            continue;
        }
        if let Some((pool, Meanwhile::KubeProxy)) = giving.give(id, true)
            && !inside_waits
        {
            giving.wanting.push((id.clone(), pool));
        }
    }
    if !inside_waits {
        victims = giving.victims(|id| is_over(id) && !refuses(id), |_| false);
        giving.close();
    }
    for (id, &pool) in &victims {
        giving.take(id, pool, refuses(id));
    }
    for id in in_turns(installed, soft) {
        if !victims.contains_key(id) {
            giving.give(id, false);
        }
    }
    giving.draft.finish(giving.left_out)
}

/// A plan in the making.
struct Giving<'a> {
    desired: &'a Desired,
    installed: &'a Installed,
    first: u64,
    draft: Draft<'a>,
    left_out: BTreeMap<ServiceId, Lack>,
    /// Those for whom others give up room, and in which map.
    wanting: Vec<(ServiceId, Pool)>,
}

impl Giving<'_> {
    /// Gives a Service all that it wants, or else what there is: then, what it lacks room in, and what
    /// its connections do.
    fn give(&mut self, id: &ServiceId, refuses: bool) -> Option<(Pool, Meanwhile)> {
        let pool = self.draft.settle(self.desired, id, Value::Whole).err()?;
        let (pool, meanwhile) = self.give_less(id, pool, refuses);
        self.left_out.insert(id.clone(), Lack { of: pool.shortage(), meanwhile });
        Some((pool, meanwhile))
    }

    /// What a Service gets that lacks room in `pool`.
    fn give_less(&mut self, id: &ServiceId, pool: Pool, refuses: bool) -> (Pool, Meanwhile) {
        let (desired, serves) = (self.desired, share::serves(self.installed, id));
        if desired.refuses(id) && self.draft.settle(desired, id, Value::Refusing).is_ok() {
            return (pool, Meanwhile::Refused);
        }
        if serves && pool.shortage() == Shortage::Endpoints {
            for narrow in [Value::Narrow(self.first), Value::Known(self.first)] {
                if self.draft.settle(desired, id, narrow).is_ok() {
                    return (pool, Meanwhile::Narrowed);
                }
            }
        }
        if (serves || desired.is_strict(id) && !refuses) && self.draft.keep(desired, id) {
            return (pool, Meanwhile::LastGood);
        }
        let lacking = if refuses {
            match self.draft.settle(desired, id, Value::Refusing) {
                Ok(()) => return (pool, Meanwhile::Refused),
                Err(pool) => pool,
            }
        } else {
            pool
        };
        self.draft.remove(id);
        (lacking, Meanwhile::KubeProxy)
    }

    /// Takes the room in `pool` from a Service over its share.
    fn take(&mut self, id: &ServiceId, pool: Pool, refuses: bool) {
        let less = match pool {
            Pool::Slots(_) => Some((Value::Narrow(self.first), Meanwhile::Narrowed)),
            Pool::Members(_) if refuses => Some((Value::Refusing, Meanwhile::Refused)),
            _ => None,
        };
        let meanwhile = match less {
            Some((value, meanwhile)) if self.draft.settle(self.desired, id, value).is_ok() => {
                meanwhile
            }
            _ => {
                self.draft.remove(id);
                Meanwhile::KubeProxy
            }
        };
        self.left_out.insert(id.clone(), Lack { of: pool.shortage(), meanwhile });
    }

    /// Who gives up room for those that want it, and in which map: the newest first, and those that
    /// are `spared` only after all others.
    fn victims(
        &self,
        may_lose: impl Fn(&ServiceId) -> bool,
        spared: impl Fn(&ServiceId) -> bool,
    ) -> BTreeMap<ServiceId, Pool> {
        if self.wanting.is_empty() {
            return BTreeMap::new();
        }
        let mut short = Room::default();
        for (id, pool) in &self.wanting {
            let (wanted, held) = (Room::wanted(self.desired, id), Room::held(self.installed, id));
            // The slots of its new endpoints are others than those of the old ones.
            let held = if matches!(pool, Pool::Slots(_)) { 0 } else { held.0[pool.place()] };
            short.0[pool.place()] += wanted.0[pool.place()].saturating_sub(held).max(1);
        }
        for pool in Pool::ALL {
            let short = &mut short.0[pool.place()];
            // Free slots may not lie side by side.
            *short = short.saturating_sub(self.draft.free(pool)).max(u64::from(*short > 0));
        }
        let mut victims = BTreeMap::new();
        for spares in [true, false] {
            let indexes: Vec<_> = self.installed.indexes().iter().collect();
            for (_, name) in indexes.into_iter().rev() {
                let Some(id) = service_of(name).filter(|id| {
                    !self.desired.targets(id).is_empty()
                        && may_lose(id)
                        && !victims.contains_key(id)
                }) else {
                    continue;
                };
                let held = Room::held(self.installed, &id);
                let gives = |pool: &Pool| short.0[pool.place()] > 0 && held.0[pool.place()] > 0;
                let Some(pool) = Pool::ALL.into_iter().find(gives) else { continue };
                if spares && spared(&id) && matches!(pool, Pool::Ports | Pool::Frontends(_)) {
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

    /// From now on, nobody takes room in maps that those want who lack room.
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

/// Those that have endpoints in the maps first; then the first of each namespace, the second of each,
/// and so on.
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

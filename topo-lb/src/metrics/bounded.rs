//! Bounds the series of TCP connections: at most so many Service ports have series of their own, and
//! all others share one. No series goes back while a Service port exists.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topo_lb_common::backend::Locality;
use topo_lb_common::counters::sum;
use topo_lb_common::totals::Totals;

use crate::datapath::maps::totals::Group;

/// Most Service ports with series of their own.
pub const MOST_OWN: usize = 500;

/// What TCP connections moved, as metrics show it.
#[derive(Clone, Debug, Default)]
pub struct Tcp {
    /// Of each Service port with series of its own since it exists, and of all others since the agent
    /// started.
    pub groups: BTreeMap<Group, Totals>,
    /// Of all Service ports by locality, since the agent started.
    pub by_locality: BTreeMap<Locality, Totals>,
}

/// Which Service ports have series of their own, and what the others moved.
#[derive(Debug, Default)]
pub struct Bounded {
    own: BTreeSet<Arc<str>>,
    /// Those that share the series of all others.
    shared: BTreeSet<Arc<str>>,
    last: BTreeMap<Group, Totals>,
    others: BTreeMap<Locality, Totals>,
    by_locality: BTreeMap<Locality, Totals>,
}

impl Bounded {
    /// Begins with what was counted before the agent started.
    #[must_use]
    pub fn since(before: BTreeMap<Group, Totals>) -> Self {
        Self { last: before, ..Self::default() }
    }

    /// Takes the kernel's current totals. New Service ports get series of their own while there is room,
    /// those that moved most bytes first. One that gets none stays among the others.
    pub fn look(&mut self, all: BTreeMap<Group, Totals>) -> Tcp {
        self.choose(&all);
        let mut groups = BTreeMap::new();
        for (group, now) in &all {
            let grown = grown(now, self.last.get(group));
            add(&mut self.by_locality, group.locality, &grown);
            if group.service.as_ref().is_some_and(|name| self.own.contains(name)) {
                groups.insert(group.clone(), *now);
            } else {
                add(&mut self.others, group.locality, &grown);
            }
        }
        self.last = all;
        for (&locality, others) in &self.others {
            groups.insert(Group { service: None, locality, tier: None }, *others);
        }
        Tcp { groups, by_locality: self.by_locality.clone() }
    }

    fn choose(&mut self, all: &BTreeMap<Group, Totals>) {
        let mut bytes = BTreeMap::<&Arc<str>, u64>::new();
        for (group, totals) in all {
            if let Some(name) = &group.service {
                *bytes.entry(name).or_default() += totals.sent.saturating_add(totals.received);
            }
        }
        self.own.retain(|name| bytes.contains_key(name));
        self.shared.retain(|name| bytes.contains_key(name));
        let is_new = |name: &Arc<str>| !self.own.contains(name) && !self.shared.contains(name);
        let mut new: Vec<_> = bytes.into_iter().filter(|(name, _)| is_new(name)).collect();
        new.sort_by_key(|(_, bytes)| Reverse(*bytes));
        let mut new = new.into_iter().map(|(name, _)| Arc::clone(name));
        self.own.extend(new.by_ref().take(MOST_OWN.saturating_sub(self.own.len())));
        self.shared.extend(new);
    }
}

/// By how much totals have grown. If they went back, they began anew.
fn grown(now: &Totals, last: Option<&Totals>) -> Totals {
    let Some(last) = last else { return *now };
    let words = |totals| bytemuck::cast_slice::<Totals, u64>(std::slice::from_ref(totals));
    if words(now).iter().zip(words(last)).any(|(now, last)| now < last) {
        return *now;
    }
    let mut grown = *now;
    let to = bytemuck::cast_slice_mut::<Totals, u64>(std::slice::from_mut(&mut grown));
    to.iter_mut().zip(words(last)).for_each(|(now, last)| *now -= last);
    grown
}

fn add(sums: &mut BTreeMap<Locality, Totals>, locality: Locality, more: &Totals) {
    let to = sums.entry(locality).or_default();
    *to = sum([&*to, more]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, sent: u64) -> (Group, Totals) {
        let service = Some(name.into());
        let group = Group { service, locality: Locality::Zone, tier: Some(0) };
        (group, Totals { sent, ..Totals::default() })
    }

    fn others(tcp: &Tcp) -> Option<u64> {
        let group = Group { service: None, locality: Locality::Zone, tier: None };
        tcp.groups.get(&group).map(|totals| totals.sent)
    }

    /// More Service ports than have series of their own; each moved as many bytes as its number.
    fn many() -> BTreeMap<Group, Totals> {
        (1..=MOST_OWN as u64 + 2).map(|it| of(&format!("default/{it}:80"), it)).collect()
    }

    #[test]
    fn the_service_ports_that_moved_least_share_a_series() {
        let tcp = Bounded::default().look(many());
        assert_eq!((tcp.groups.len(), others(&tcp)), (MOST_OWN + 1, Some(1 + 2)));
        assert_eq!(
            Bounded::default().look(BTreeMap::from([of("default/web:80", 7)])).groups.len(),
            1
        );
    }

    #[test]
    fn no_series_goes_back_when_others_come_grow_and_go() {
        let mut bounded = Bounded::default();
        let mut all = many();
        bounded.look(all.clone());
        // One of the others grows beyond those with series of their own, which makes no difference.
        all.extend([of("default/1:80", 1_000)]);
        let tcp = bounded.look(all.clone());
        assert_eq!((tcp.groups.len(), others(&tcp)), (MOST_OWN + 1, Some(1_000 + 2)));
        all.remove(&of("default/2:80", 0).0);
        assert_eq!(others(&bounded.look(all.clone())), Some(1_000 + 2));
        // It gets no series of its own when another one's Service port is gone: a new one does.
        all.remove(&of("default/9:80", 0).0);
        all.extend([of("default/new:80", 5)]);
        let tcp = bounded.look(all);
        assert!(tcp.groups.contains_key(&of("default/new:80", 0).0));
        assert_eq!(others(&tcp), Some(1_000 + 2));
        assert_eq!(tcp.by_locality[&Locality::Zone].sent, {
            let before: u64 = (1..=MOST_OWN as u64 + 2).sum();
            before + 999 + 5
        });
    }

    #[test]
    fn what_others_moved_before_the_start_or_under_another_service_does_not_count() {
        let mut bounded = Bounded::since(BTreeMap::from([of("default/web:80", 70)]));
        let tcp = bounded.look(BTreeMap::from([of("default/web:80", 72)]));
        assert_eq!(tcp.groups.values().next().unwrap().sent, 72);
        assert_eq!(tcp.by_locality[&Locality::Zone].sent, 2);
        // Made again: its totals begin at zero.
        let tcp = bounded.look(BTreeMap::from([of("default/web:80", 3)]));
        assert_eq!(tcp.by_locality[&Locality::Zone].sent, 5);
    }
}

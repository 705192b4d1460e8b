//! When idle connections return to a nearer tier. Pure: the caller passes the time.
//!
//! A Service port is **due** once what new connections get now, or something nearer, has been in force for the
//! time that its Service asks for, and until nobody finds a connection to a wider tier any more. A tier that
//! flaps is never in force for long, so nothing moves. A restart of the agent begins all times anew.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cluster::{Frontend, ServiceId};
use crate::topology::Chosen;
use crate::topology::homeward::RANKS;

/// Where connections to a Service port go, in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// `namespace/name:port`.
    pub name: Arc<str>,
    /// How long what is in force has to be so.
    pub after: Duration,
    /// The widest tier that new connections get, 0 for the nearest; `None` while they are refused.
    pub rank: Option<u8>,
    /// What clients dial; at least one.
    pub frontends: Box<[Frontend]>,
    /// The endpoints that new connections get.
    pub row: Arc<[Chosen]>,
    /// Those that serve, in a wider tier. Sorted.
    pub wide: Arc<[SocketAddr]>,
}

/// For how long nobody is to have spoken on a connection that ends, at most: who streams an answer in parts, or holds a
/// transaction open, is seldom silent for longer.
pub const SILENCE: Duration = Duration::from_secs(60);

impl Way {
    /// For how long nobody is to have spoken on a connection that ends.
    #[must_use]
    pub fn silence(&self) -> Duration {
        self.after.min(SILENCE)
    }
}

/// A Service port in one family.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The Service.
    pub service: ServiceId,
    /// The first of its frontends.
    pub frontend: Frontend,
}

/// A Service port whose idle connections to a wider tier shall end.
#[derive(Clone, Debug)]
pub struct Due {
    /// Which.
    pub key: Key,
    /// Says what a search was for: a later one may find more.
    pub turn: u64,
    /// Where connections may stay, and where not.
    pub way: Arc<Way>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        (&self.key, self.turn) == (&other.key, other.turn) && Arc::ptr_eq(&self.way, &other.way)
    }
}

/// Since when each tier, or a nearer one, has been in force.
#[derive(Clone, Copy, Debug, Default)]
struct Clock([Option<Instant>; RANKS]);

impl Clock {
    /// This is in force now.
    fn see(&mut self, rank: Option<u8>, now: Instant) {
        let rank = rank.map_or(RANKS, usize::from);
        for (own, since) in self.0.iter_mut().enumerate() {
            *since = if own < rank { None } else { Some(since.unwrap_or(now)) };
        }
    }

    fn since(&self, rank: Option<u8>) -> Option<Instant> {
        *self.0.get(usize::from(rank?))?
    }
}

#[derive(Debug)]
struct Watched {
    way: Arc<Way>,
    clock: Clock,
    /// Connections to a wider tier may be there, since this turn.
    away: Option<u64>,
}

impl Watched {
    fn is_due(&self, now: Instant) -> bool {
        let since = self.clock.since(self.way.rank);
        since.is_some_and(|since| now.saturating_duration_since(since) >= self.way.after)
    }
}

/// The Services whose connections may return.
#[derive(Debug, Default)]
pub struct Homecoming {
    services: BTreeMap<ServiceId, Vec<Watched>>,
    /// Those with connections that may be away.
    away: BTreeSet<ServiceId>,
    turn: u64,
}

impl Homecoming {
    /// Takes in where connections to a Service go now; nowhere: they need not return.
    pub fn take_in(&mut self, service: ServiceId, ways: Vec<Way>, now: Instant) {
        let mut before = self.services.remove(&service).unwrap_or_default();
        let mut all = Vec::with_capacity(ways.len());
        for way in ways.into_iter().filter(|way| !way.frontends.is_empty()) {
            let same = before.iter().position(|it| it.way.frontends[0] == way.frontends[0]);
            let old = same.map(|at| before.swap_remove(at));
            let watched = self.watch(old, way, now);
            all.push(watched);
        }
        if all.iter().any(|it| it.away.is_some()) {
            self.away.insert(service.clone());
        } else {
            self.away.remove(&service);
        }
        if !all.is_empty() {
            self.services.insert(service, all);
        }
    }

    fn watch(&mut self, old: Option<Watched>, way: Way, now: Instant) -> Watched {
        let mut clock = old.as_ref().map(|it| it.clock).unwrap_or_default();
        let is_wide = |address: SocketAddr| way.wide.binary_search(&address).is_ok();
        // Another policy, or a Node's new label: what was near enough is not any more.
        let is_narrower = old
            .as_ref()
            .is_some_and(|old| old.way.row.iter().any(|chosen| is_wide(chosen.address())));
        if is_narrower {
            clock = Clock::default();
        }
        clock.see(way.rank, now);
        let known =
            |endpoint| old.as_ref().is_some_and(|old| old.way.wide.binary_search(endpoint).is_ok());
        let away = if way.wide.is_empty() {
            None
        } else if way.wide.iter().all(known) {
            old.as_ref().and_then(|it| it.away)
        } else {
            self.turn += 1;
            Some(self.turn)
        };
        let way = match old {
            Some(old) if *old.way == way => old.way,
            _ => Arc::new(way),
        };
        Watched { way, clock, away }
    }

    /// The Service ports that are due.
    #[must_use]
    pub fn due(&self, now: Instant) -> Vec<Due> {
        let away = self.away.iter().filter_map(|id| Some((id, self.services.get(id)?)));
        let ports = away.flat_map(|(id, all)| all.iter().map(move |it| (id, it)));
        let due = ports.filter(|(_, it)| it.is_due(now)).filter_map(|(id, it)| {
            let key = Key { service: id.clone(), frontend: it.way.frontends[0] };
            Some(Due { key, turn: it.away?, way: Arc::clone(&it.way) })
        });
        due.collect()
    }

    /// A search of this turn has found no connection to a wider tier.
    pub fn is_home(&mut self, key: &Key, turn: u64) {
        let Some(all) = self.services.get_mut(&key.service) else { return };
        for one in all.iter_mut().filter(|it| it.way.frontends[0] == key.frontend) {
            one.away = one.away.filter(|own| *own != turn);
        }
        if all.iter().all(|it| it.away.is_none()) {
            self.away.remove(&key.service);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use topo_lb_common::backend::Locality;

    use super::*;
    use crate::cluster::Protocol;

    const AFTER: u64 = 10;

    fn id() -> ServiceId {
        ServiceId { namespace: "shop".into(), name: "cart".into() }
    }

    fn address(host: u8) -> SocketAddr {
        ([10, 244, 0, host], 80).into()
    }

    fn way(rank: Option<u8>, row: &[u8], wide: &[u8]) -> Way {
        Way {
            name: "shop/cart:http".into(),
            after: Duration::from_secs(AFTER),
            rank,
            frontends: [Frontend::new([10, 96, 0, 1].into(), 80, Protocol::Tcp)].into(),
            row: row.iter().map(|&host| Chosen::new(address(host), Locality::Zone)).collect(),
            wide: wide.iter().copied().map(address).collect(),
        }
    }

    /// The near endpoint is there, or only the far one.
    fn near() -> Way {
        way(Some(0), &[1], &[2])
    }

    fn far() -> Way {
        way(Some(1), &[2], &[])
    }

    struct Scene {
        start: Instant,
        homecoming: Homecoming,
    }

    impl Scene {
        fn new() -> Self {
            Self { start: Instant::now(), homecoming: Homecoming::default() }
        }

        fn at(&self, second: u64) -> Instant {
            self.start + Duration::from_secs(second)
        }

        fn turn_to(&mut self, second: u64, way: Way) {
            let now = self.at(second);
            self.homecoming.take_in(id(), vec![way], now);
        }

        fn due(&self, second: u64) -> Vec<Due> {
            self.homecoming.due(self.at(second))
        }
    }

    #[test]
    fn a_service_is_due_once_the_nearer_tier_has_been_there_for_its_time_until_all_are_home() {
        let mut scene = Scene::new();
        scene.turn_to(0, near());
        scene.turn_to(3, far());
        assert!(scene.due(1_000).is_empty(), "nothing is wider than what is in force");
        scene.turn_to(1_000, near());
        assert!(scene.due(1_009).is_empty());
        let [due] = &scene.due(1_010)[..] else { panic!() };
        assert_eq!(*due.way.wide, [address(2)]);
        scene.homecoming.is_home(&due.key, due.turn - 1);
        assert_eq!(
            scene.due(1_020),
            std::slice::from_ref(due),
            "an earlier search says nothing of this turn"
        );
        // What changes nothing needs no other search.
        scene.turn_to(1_020, near());
        assert_eq!(scene.due(1_020), std::slice::from_ref(due));
        scene.homecoming.is_home(&due.key, due.turn);
        assert!(scene.due(5_000).is_empty());
        // A further endpoint far away may be an old one.
        scene.turn_to(5_000, way(Some(0), &[1], &[2, 3]));
        assert_eq!(scene.due(5_000).len(), 1);
        scene.turn_to(5_001, way(Some(0), &[1, 3], &[2]));
        scene.homecoming.take_in(id(), Vec::new(), scene.at(5_002));
        assert!(scene.due(9_000).is_empty() && scene.homecoming.away.is_empty());
    }

    #[test]
    fn the_start_of_an_agent_begins_the_time_anew() {
        let mut scene = Scene::new();
        scene.turn_to(0, near());
        assert!(scene.due(9).is_empty());
        assert_eq!(scene.due(10).len(), 1, "who knows what was before");
    }

    #[test]
    fn a_tier_may_become_wider_but_not_than_that_of_the_connections() {
        let mut scene = Scene::new();
        let wide = || way(Some(1), &[2], &[3]);
        scene.turn_to(0, way(Some(0), &[1], &[2, 3]));
        scene.turn_to(8, wide());
        assert_eq!(
            scene.due(10).len(),
            1,
            "the middle tier, or a nearer one, was there all the time"
        );
        scene.turn_to(12, way(Some(2), &[3], &[]));
        scene.turn_to(13, wide());
        assert!(scene.due(22).is_empty());
        assert_eq!(scene.due(23).len(), 1);
    }

    #[test]
    fn what_refuses_in_between_begins_the_time_anew() {
        let mut scene = Scene::new();
        scene.turn_to(0, near());
        scene.turn_to(5, way(None, &[], &[]));
        scene.turn_to(6, near());
        assert!(scene.due(15).is_empty());
        assert_eq!(scene.due(16).len(), 1);
    }

    #[test]
    fn another_policy_begins_the_time_anew() {
        let mut scene = Scene::new();
        // The only key is `*`.
        scene.turn_to(0, way(Some(0), &[1, 2], &[]));
        scene.turn_to(100, near());
        assert!(scene.due(109).is_empty());
        assert_eq!(scene.due(110).len(), 1);
    }

    proptest! {
        /// Whatever happens: what is due was, or something nearer was, in force all the time; and what is not
        /// due though it was, is home.
        #[test]
        fn only_what_has_been_stable_is_due(
            ranks in prop::collection::vec((prop::option::of(0_u8..3), 1_u64..15), 1..30),
        ) {
            let mut scene = Scene::new();
            let (mut second, mut history) = (0, Vec::new());
            for (rank, length) in ranks {
                let tier = rank.map_or(0, |rank| rank + 1);
                let wide: Vec<u8> = if tier == 0 { vec![] } else { (tier + 1..=3).collect() };
                let row: Vec<u8> = (1..=tier).collect();
                scene.turn_to(second, way(rank, &row, &wide));
                for _ in 0..length {
                    history.push(rank);
                    second += 1;
                    let last = history.iter().rev().take(AFTER as usize);
                    let stable = history.len() >= AFTER as usize
                        && last.clone().all(|it| it.is_some() && *it <= rank);
                    let due = scene.due(second);
                    prop_assert!(due.is_empty() || stable, "{:?}", history);
                    // Nearer by a step begins anew, also for what is further away.
                    let same = last.into_iter().all(|it| *it == rank);
                    let is_due = stable && same && !wide.is_empty();
                    prop_assert!(!is_due || due.len() == 1, "{:?}", history);
                }
            }
        }
    }
}

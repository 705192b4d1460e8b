//! The guarantees of plans for any sequence of changes, shown with maps in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use topo_lb_common::backend::Locality;

use super::diff;
use super::{Capacity, Desired, Installed, Lack, Meanwhile, Plan, Ration, WhenFull};
use crate::cluster::{Frontend, Protocol, ServiceId};
use crate::datapath::maps::commit::{commit, take_over};
use crate::datapath::maps::memory::MemoryStore;
use crate::topology::{Chosen, Route, Verdict};

const SMALL: Capacity = Capacity { services: 6, slots: 60, members: 40, flows: 8, connections: 0 };

fn id(name: u8) -> ServiceId {
    let namespace = ["one", "three", "two"][usize::from(name % 3)];
    ServiceId { namespace: namespace.into(), name: format!("s{name}").as_str().into() }
}

/// One Service port: its Service, its ClusterIP (few, so that Services share one), its endpoints.
fn route() -> impl Strategy<Value = Route> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    (
        0u8..6,
        any::<bool>(),
        protocol,
        prop::collection::btree_set(0u8..40, 0..20),
        0usize..4,
        0u8..3,
    )
        .prop_map(|(address, six, protocol, hosts, serving, affinity)| {
            let ip = |kind: u8, host: u8| -> IpAddr {
                if six {
                    IpAddr::from([0xfd00, 0, 0, 0, 0, 0, u16::from(kind), u16::from(host)])
                } else {
                    IpAddr::from([10, kind, 0, host])
                }
            };
            let endpoints: Vec<Chosen> = hosts
                .iter()
                .map(|&host| {
                    let address = SocketAddr::new(ip(1, host), 80);
                    Chosen::new(address, Locality::from_byte(host % 4))
                })
                .collect();
            Route {
                frontends: vec![ip(96, address)],
                port: 80,
                protocol,
                verdict: if endpoints.is_empty() { Verdict::Refuse } else { Verdict::Route },
                tier: Some(0),
                endpoints,
                wider: Vec::new(),
                spill: 0,
                strict: address % 2 == 0,
                affinity_seconds: (affinity == 0).then_some(600),
                serving: (0..serving as u8)
                    .map(|host| SocketAddr::new(ip(1, 100 + host), 80))
                    .collect(),
                name: "".into(),
            }
        })
}

/// A change: the new routes of this Service; none deletes it.
fn change() -> impl Strategy<Value = (u8, Vec<Route>)> {
    (0u8..8, prop::collection::vec(route(), 0..3)).prop_map(|(service, mut routes)| {
        for (port, route) in routes.iter_mut().enumerate() {
            route.name = format!("{}:p{port}", id(service)).as_str().into();
        }
        (service, routes)
    })
}

/// The endpoints of each frontend, straight from the routes, and its Service: the first claimant.
fn expected(
    state: &BTreeMap<ServiceId, Vec<Route>>,
) -> BTreeMap<Frontend, (&ServiceId, &[Chosen])> {
    let mut all = BTreeMap::new();
    for (id, routes) in state {
        for route in routes {
            for &address in &route.frontends {
                let frontend = Frontend { address, port: route.port, protocol: route.protocol };
                all.entry(frontend).or_insert((id, &*route.endpoints));
            }
        }
    }
    all
}

struct Before {
    gave: Option<Vec<Chosen>>,
    /// It belonged to the Service that should have it.
    is_its: bool,
}

fn every_frontend() -> Vec<Frontend> {
    let mut all = Vec::new();
    for host in 0u8..6 {
        for address in [
            IpAddr::from([10, 96, 0, host]),
            IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 96, u16::from(host)]),
        ] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                all.push(Frontend { address, port: 80, protocol });
            }
        }
    }
    all
}

struct World {
    state: BTreeMap<ServiceId, Vec<Route>>,
    desired: Desired,
    installed: Installed,
    store: MemoryStore,
    unprogrammed: BTreeMap<ServiceId, Lack>,
    ration: Ration,
}

impl World {
    fn new(capacity: Capacity) -> Self {
        Self {
            state: BTreeMap::new(),
            desired: Desired::default(),
            installed: Installed::new(capacity),
            store: MemoryStore::new(capacity),
            unprogrammed: BTreeMap::new(),
            ration: Ration::default(),
        }
    }

    fn plan(&mut self, touched: &BTreeSet<ServiceId>) -> Plan {
        diff::plan(&self.desired, &self.installed, touched, &mut self.ration)
    }

    fn set(&mut self, changes: Vec<(u8, Vec<Route>)>) -> BTreeSet<ServiceId> {
        let mut touched: BTreeSet<_> = std::mem::take(&mut self.unprogrammed).into_keys().collect();
        self.ration.renew();
        for (service, routes) in changes {
            touched.extend(self.desired.set(id(service), routes.clone()));
            self.state.insert(id(service), routes);
        }
        touched
    }

    /// Every frontend as it is before the next plan.
    fn before(&self) -> Vec<Before> {
        let expected = expected(&self.state);
        let has = |id: &ServiceId, frontend| {
            let mut ports = self.installed.indexes().of_service(id);
            ports.any(|(_, index)| self.installed.frontends_of(index).any(|it| it == frontend))
        };
        let before = |frontend| Before {
            gave: self.store.resolve(frontend),
            is_its: expected.get(frontend).is_some_and(|(id, _)| has(id, frontend)),
        };
        every_frontend().iter().map(before).collect()
    }

    /// `before`: every frontend before the last plan, if that plan left something out.
    fn agrees(&self, before: &[Before]) -> Result<(), TestCaseError> {
        let expected = expected(&self.state);
        for (place, frontend) in every_frontend().into_iter().enumerate() {
            let now = self.store.resolve(&frontend);
            let Some(&(id, whole)) = expected.get(&frontend) else {
                prop_assert_eq!(now, None, "{}", frontend);
                continue;
            };
            match self.unprogrammed.get(id).map(|lack| lack.meanwhile) {
                None => prop_assert_eq!(now.as_deref(), Some(whole), "{}", frontend),
                Some(Meanwhile::KubeProxy) => prop_assert_eq!(now, None, "{}", frontend),
                Some(Meanwhile::Refused) => prop_assert_eq!(now, Some(vec![]), "{}", frontend),
                Some(Meanwhile::LastGood) => {
                    let Before { gave, is_its } = &before[place];
                    // A frontend that is new or belonged to another Service gives nothing.
                    let last = if *is_its { gave.clone() } else { None };
                    prop_assert_eq!(now, last, "{}", frontend);
                }
                Some(Meanwhile::Narrowed) => {
                    let row = now.unwrap_or_default();
                    prop_assert!(row.len() <= 8, "{}", frontend);
                    prop_assert_eq!(row.is_empty(), whole.is_empty(), "{}", frontend);
                    prop_assert!(row.iter().all(|one| whole.contains(one)), "{}", frontend);
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_every_prefix_each_frontend_is_wholly_old_or_wholly_new(
        batches in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..8),
        small: bool,
        refuses: bool,
    ) {
        let mut world = World::new(if small { SMALL } else { Capacity::default() });
        let when_full = if refuses { WhenFull::RefuseStrict } else { WhenFull::Leave };
        world.ration = Ration::new(when_full, 3);
        for batch in batches {
            let touched = world.set(batch);
            let plan = world.plan(&touched);
            let before = world.before();
            let mut after = world.store.clone();
            commit(&plan, &mut after, &mut world.installed.clone()).unwrap();
            for step in &plan.steps {
                let one = Plan { steps: vec![step.clone()], ..Default::default() };
                commit(&one, &mut world.store, &mut world.installed).unwrap();
                for (frontend, Before { gave, .. }) in every_frontend().iter().zip(&before) {
                    let now = world.store.resolve(frontend);
                    prop_assert!(now == *gave || now == after.resolve(frontend), "{frontend}");
                }
            }
            world.unprogrammed = plan.unprogrammed;
            world.agrees(&before)?;
        }
    }

    /// A UDP flow checks its endpoint's membership once per new value. An endpoint that the value
    /// drops must be unlisted by then, or the flow keeps it for ever.
    #[test]
    fn no_entry_is_published_while_an_endpoint_that_it_drops_is_a_member(
        batches in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..8),
    ) {
        let mut world = World::new(Capacity::default());
        for batch in batches {
            let touched = world.set(batch);
            let plan = world.plan(&touched);
            let mut after = world.store.clone();
            commit(&plan, &mut after, &mut world.installed.clone()).unwrap();
            for step in &plan.steps {
                let one = Plan { steps: vec![step.clone()], ..Default::default() };
                commit(&one, &mut world.store, &mut world.installed).unwrap();
                let super::Step::Publish { entry, frontend, .. } = step else { continue };
                let listed = world.store.members().keys().filter(|(of, _)| *of == entry.index);
                for member in listed {
                    prop_assert!(after.members().contains_key(member), "{frontend}: {member:?}");
                }
            }
        }
    }

    #[test]
    fn planning_again_finds_nothing_to_do_also_after_a_restart(
        batch in prop::collection::vec(change(), 1..8),
    ) {
        let mut world = World::new(Capacity::default());
        let touched = world.set(batch);
        let plan = world.plan(&touched);
        commit(&plan, &mut world.store, &mut world.installed).unwrap();
        let found = take_over(&mut world.store).unwrap();
        for installed in [&world.installed, &found] {
            let all: BTreeSet<ServiceId> = world
                .desired
                .services()
                .cloned()
                .chain(diff::orphans(&world.desired, installed))
                .collect();
            prop_assert_eq!(diff::plan(&world.desired, installed, &all, &mut Ration::default()).steps, vec![]);
        }
    }

    #[test]
    fn what_was_deleted_while_no_agent_ran_is_removed_at_start(
        batch in prop::collection::vec(change(), 1..8),
    ) {
        let mut world = World::new(Capacity::default());
        let touched = world.set(batch);
        let plan = world.plan(&touched);
        commit(&plan, &mut world.store, &mut world.installed).unwrap();

        let mut found = take_over(&mut world.store).unwrap();
        let nothing = Desired::default();
        let orphans = diff::orphans(&nothing, &found);
        let plan = diff::plan(&nothing, &found, &orphans, &mut Ration::default());
        commit(&plan, &mut world.store, &mut found).unwrap();
        for frontend in every_frontend() {
            prop_assert_eq!(world.store.resolve(&frontend), None);
        }
        prop_assert!(world.store.members().is_empty());
        prop_assert!(world.store.names().is_empty());
        for family in crate::cluster::Family::BOTH {
            prop_assert_eq!(found.slots(family).available(), Capacity::default().slots);
        }
    }

    #[test]
    fn a_write_that_fails_breaks_no_frontend_and_planning_anew_mends_all(
        first in prop::collection::vec(change(), 1..6),
        second in prop::collection::vec(change(), 1..6),
        fail_at in 1usize..40,
    ) {
        let mut world = World::new(Capacity::default());
        let touched = world.set(first);
        let plan = world.plan(&touched);
        commit(&plan, &mut world.store, &mut world.installed).unwrap();

        let touched = world.set(second);
        let plan = world.plan(&touched);
        world.store.fail_at = Some(world.store.writes + fail_at);
        if commit(&plan, &mut world.store, &mut world.installed).is_err() {
            world.installed = take_over(&mut world.store).unwrap();
            let all: BTreeSet<ServiceId> = world
                .desired
                .services()
                .cloned()
                .chain(diff::orphans(&world.desired, &world.installed))
                .chain(touched)
                .collect();
            let plan = world.plan(&all);
            commit(&plan, &mut world.store, &mut world.installed).unwrap();
        }
        world.store.fail_at = None;
        world.agrees(&[])?;
    }

    #[test]
    fn members_are_those_of_udp_and_affinity_services_and_no_others(
        batches in prop::collection::vec(prop::collection::vec(change(), 1..4), 1..5),
    ) {
        let mut world = World::new(Capacity::default());
        for batch in batches {
            let touched = world.set(batch);
            let plan = world.plan(&touched);
            commit(&plan, &mut world.store, &mut world.installed).unwrap();
        }
        let mut wanted = BTreeMap::new();
        for route in world.state.values().flatten() {
            if route.protocol != Protocol::Udp && route.affinity_seconds.is_none() { continue; }
            for chosen in &route.endpoints {
                wanted.insert((route.name.to_string(), chosen.address()), true);
            }
            for &address in &route.serving {
                wanted.insert((route.name.to_string(), address), false);
            }
        }
        let listed: BTreeMap<_, _> = world
            .store
            .members()
            .iter()
            .map(|(&(index, address), &chosen)| {
                ((world.store.names()[&index].clone(), address), chosen)
            })
            .collect();
        prop_assert_eq!(listed, wanted);
    }
}

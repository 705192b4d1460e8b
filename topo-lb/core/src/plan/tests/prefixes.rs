//! The guarantees of plans for any sequence of changes, shown with maps in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use topo_lb_common::backend::Locality;
use topo_lb_common::range::Range;

use super::world::{World, route};
use crate::cluster::{Clients, Family, Frontend, FrontendKind, Protocol, ServiceId};
use crate::plan::apportionment::{self, Rows};
use crate::plan::commit::{commit, take_over};
use crate::plan::draft::widened;
use crate::plan::{
    Capacity, Desired, Meanwhile, Member, Plan, Ration, Step, WhenFull, diff, maglev,
};
use crate::topology::{Chosen, Part, Route};

const SMALL: Capacity = Capacity {
    services: 6,
    slots: 60,
    members: 40,
    flows: 8,
    connections: 0,
    sources: 0,
    hops: 0,
    spare: 2,
};

fn id(name: u8) -> ServiceId {
    let namespace = ["one", "three", "two"][usize::from(name % 3)];
    ServiceId { namespace: namespace.into(), name: format!("s{name}").as_str().into() }
}

/// 10.`kind`.0.`host` or fd00::`kind`:`host`.
fn ip(six: bool, kind: u8, host: u8) -> IpAddr {
    if six {
        IpAddr::from([0xfd00, 0, 0, 0, 0, 0, u16::from(kind), u16::from(host)])
    } else {
        IpAddr::from([10, kind, 0, host])
    }
}

/// One Service port: its Service, its frontends (few, so that Services share some), its endpoints.
fn routes() -> impl Strategy<Value = Route> {
    let protocol = prop_oneof![Just(Protocol::Tcp), Just(Protocol::Udp)];
    let hosts = prop::collection::btree_set(0u8..40, 0..20);
    let bools = (any::<bool>(), any::<bool>(), prop::bool::weighted(0.3), any::<bool>());
    let weights = prop_oneof![Just(Vec::new()), prop::collection::vec(1u16..20, 3)];
    (0u8..6, bools, protocol, hosts, 0u8..4, (0u8..3, 1u8..4), weights).prop_map(
        |(address, bools, protocol, hosts, serving, (affinity, frontends), weights)| {
            let (six, outside, consistent, tagged) = bools;
            let clients = if outside { Clients::Outside } else { Clients::Anywhere };
            let endpoint =
                |host: &u8| (SocketAddr::new(ip(six, 1, *host), 80), Locality::from_byte(host % 4));
            let route = route((ip(six, 96, address), 80, protocol), hosts.iter().map(endpoint));
            let part = |(at, &weight): (usize, &u16)| Part {
                weight,
                endpoints: route.endpoints.iter().copied().skip(at).step_by(3).collect(),
            };
            let mut parts: Vec<_> = weights.iter().enumerate().map(part).collect();
            parts.retain(|part| !part.endpoints.is_empty());
            Route {
                tier: Some(0),
                parts,
                strict: address % 2 == 0,
                failures: address,
                consistent,
                nodes: route
                    .endpoints
                    .iter()
                    .filter(|_| tagged)
                    .map(|it| (it.address(), 7))
                    .collect(),
                affinity_seconds: (affinity == 0).then_some(600),
                serving: (0..serving)
                    .map(|host| SocketAddr::new(ip(six, 1, 100 + host), 80))
                    .collect(),
                drops: outside && hosts.is_empty(),
                frontends: (0..frontends)
                    .map(|more| Frontend::new(ip(six, 96 + more, address), 80, protocol))
                    .map(|frontend| (FrontendKind::LoadBalancerIp, frontend.of(clients)))
                    .collect(),
                ..route
            }
        },
    )
}

/// Changes: the new routes of a Service; none deletes it.
fn changes(most: usize) -> impl Strategy<Value = Vec<(ServiceId, Vec<Route>)>> {
    let change = (0u8..8, prop::collection::vec(routes(), 0..3)).prop_map(|(name, mut routes)| {
        for (port, route) in routes.iter_mut().enumerate() {
            route.name = format!("{}:p{port}", id(name)).as_str().into();
        }
        (id(name), routes)
    });
    prop::collection::vec(change, 1..most)
}

/// The slots of a consistent choice.
fn table(parts: &[Part]) -> Vec<Chosen> {
    let (row, shares) = maglev::apportioned(parts);
    shares.table(&row)
}

struct Before {
    gave: Option<Vec<Chosen>>,
    /// It belonged to the Service that should have it.
    is_its: bool,
}

fn every_frontend() -> Vec<Frontend> {
    let mut all = Vec::new();
    for host in 0u8..6 {
        for six in [false, true] {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                for kind in 96..99 {
                    let frontend = Frontend::new(ip(six, kind, host), 80, protocol);
                    all.extend([frontend, frontend.of(Clients::Outside)]);
                }
            }
        }
    }
    all
}

struct Agent {
    world: World,
    routes: BTreeMap<ServiceId, Vec<Route>>,
}

impl Agent {
    fn new(capacity: Capacity, when_full: WhenFull) -> Self {
        Self { world: World::new(capacity, when_full), routes: BTreeMap::new() }
    }

    fn set(&mut self, changes: Vec<(ServiceId, Vec<Route>)>) -> BTreeSet<ServiceId> {
        self.routes.extend(changes.iter().cloned());
        self.world.set(changes)
    }

    fn settle(&mut self, changes: Vec<(ServiceId, Vec<Route>)>) {
        let touched = self.set(changes);
        self.world.carry_out(&touched);
    }

    /// The endpoints of each frontend, straight from the routes, and its Service: the first
    /// claimant, whoever its clients are.
    fn expected(&self) -> BTreeMap<Frontend, (&ServiceId, Vec<Chosen>)> {
        let (mut all, mut owners) = (BTreeMap::new(), BTreeMap::new());
        for (id, routes) in &self.routes {
            for (place, route) in routes.iter().enumerate() {
                let Rows { first, second, .. } = apportionment::rows(&route.parts);
                let alike = || vec![Part { weight: 1, endpoints: route.endpoints.clone() }];
                let row = match route.parts.is_empty() {
                    _ if route.consistent && route.endpoints.is_empty() => Vec::new(),
                    true if route.consistent => table(&alike()),
                    false if route.consistent => table(&route.parts),
                    true => route.endpoints.clone(),
                    false => [first, second].concat(),
                };
                let claim = (id, place);
                for (_, frontend) in &route.frontends {
                    if *owners.entry(frontend.of(Clients::Anywhere)).or_insert(claim) == claim {
                        all.insert(*frontend, (id, row.clone()));
                    }
                }
            }
        }
        all
    }

    /// Every frontend as it is before the next plan.
    fn before(&self) -> Vec<Before> {
        let expected = self.expected();
        let installed = &self.world.installed;
        let has = |id: &ServiceId, frontend| {
            let mut ports = installed.indexes().of_service(id);
            ports.any(|(_, index)| installed.frontends_of(index).any(|it| it == frontend))
        };
        let before = |frontend| Before {
            gave: self.world.store.resolve(frontend),
            is_its: expected.get(frontend).is_some_and(|(id, _)| has(id, frontend)),
        };
        every_frontend().iter().map(before).collect()
    }

    /// `before`: every frontend before the last plan, if that plan left something out.
    fn agrees(&self, before: &[Before]) -> Result<(), TestCaseError> {
        let expected = self.expected();
        for (place, frontend) in every_frontend().into_iter().enumerate() {
            let now = self.world.store.resolve(&frontend);
            let Some((id, whole)) = expected.get(&frontend) else {
                prop_assert_eq!(now, None, "{}", frontend);
                continue;
            };
            match self.world.unprogrammed.get(*id).map(|lack| lack.meanwhile) {
                None => prop_assert_eq!(now.as_ref(), Some(whole), "{}", frontend),
                Some(Meanwhile::KubeProxy | Meanwhile::Nobody) => {
                    prop_assert_eq!(now, None, "{}", frontend)
                }
                Some(Meanwhile::Refused) => prop_assert_eq!(now, Some(vec![]), "{}", frontend),
                Some(Meanwhile::LastGood) => {
                    let Before { gave, is_its } = &before[place];
                    // A frontend that is new or belonged to another Service gives nothing.
                    let last = if *is_its { gave.clone() } else { None };
                    prop_assert_eq!(now, last, "{}", frontend);
                }
                Some(Meanwhile::DirectDials) => prop_assert!(false, "no Service refuses them"),
                Some(Meanwhile::Narrowed) => {
                    let row = now.unwrap_or_default();
                    prop_assert!(row.len() <= 6, "{}", frontend);
                    prop_assert_eq!(row.is_empty(), whole.is_empty(), "{}", frontend);
                    prop_assert!(row.iter().all(|one| whole.contains(one)), "{}", frontend);
                }
            }
        }
        Ok(())
    }

    /// Exactly the slots of rows in use are taken, each row once.
    fn slots_are_whole(&self) -> Result<(), TestCaseError> {
        let World { installed, .. } = &self.world;
        for family in Family::BOTH {
            let of = installed.placed().filter(|(frontend, _)| frontend.family() == family);
            let rows = of.filter_map(|(_, it)| Some((it.slot_base?, it.entry.slots())));
            let rows: BTreeMap<u32, u32> = rows.collect();
            let (used, size) = (rows.values().sum::<u32>(), installed.capacity().slots);
            prop_assert_eq!(installed.slots(family).available(), size - used);
        }
        Ok(())
    }

    /// The range is that of all published frontends.
    fn range_is_exact(&self) -> Result<(), TestCaseError> {
        let installed = &self.world.installed;
        let all = installed.placed().map(|(frontend, _)| *frontend).fold(Range::EMPTY, widened);
        prop_assert_eq!(installed.range(), all);
        Ok(())
    }

    /// Members are the endpoints of UDP Services and of those with session affinity, ejection or direct return, and no
    /// others.
    fn members_are_whole(&self) -> Result<(), TestCaseError> {
        let mut wanted = BTreeMap::new();
        let needs = |route: &&Route| {
            let is_asked = route.affinity_seconds.is_some() || route.failures != 0;
            route.protocol == Protocol::Udp || is_asked || !route.nodes.is_empty()
        };
        for route in self.routes.values().flatten().filter(needs) {
            let tag = if route.nodes.is_empty() { 0 } else { 7 };
            let chosen = route.endpoints.iter().map(|one| (one.address(), Member::new(true, tag)));
            let serving = route.serving.iter().map(|&address| (address, Member::new(false, 0)));
            wanted.extend(chosen.chain(serving).map(|(at, is)| ((&*route.name, at), is)));
        }
        let store = &self.world.store;
        let listed = store.members().iter();
        let listed: BTreeMap<_, _> = listed
            .map(|(&(index, address), it)| ((&*store.names()[&index], address), *it))
            .collect();
        prop_assert_eq!(listed, wanted);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn after_every_prefix_each_frontend_is_wholly_old_or_wholly_new(
        batches in prop::collection::vec(changes(4), 1..8),
        small: bool,
        slots in prop::sample::select(vec![60, 4_000]),
        refuses: bool,
        narrows: bool,
    ) {
        let small_maps = Capacity { slots, ..SMALL };
        let when_full = if refuses { WhenFull::RefuseStrict } else { WhenFull::Leave };
        let mut agent = Agent::new(if small { small_maps } else { Capacity::default() }, when_full);
        agent.world.narrow(narrows);
        for batch in batches {
            let touched = agent.set(batch);
            let before = agent.before();
            let world = &mut agent.world;
            let plan = world.plan(&touched);
            let mut after = world.store.clone();
            commit(&plan, &mut after, &mut world.installed.clone()).unwrap();
            for step in &plan.steps {
                let one = Plan { steps: vec![step.clone()], ..Default::default() };
                commit(&one, &mut world.store, &mut world.installed).unwrap();
                for (frontend, Before { gave, .. }) in every_frontend().iter().zip(&before) {
                    let now = world.store.resolve(frontend);
                    prop_assert!(now == *gave || now == after.resolve(frontend), "{frontend}");
                }
                // A UDP flow checks its endpoint's membership once per new value. An endpoint that
                // the value drops must be unlisted by then, or the flow keeps it for ever.
                if let Step::Publish { entry, frontend, .. } = step {
                    let listed = world.store.members().keys().filter(|(of, _)| *of == entry.index);
                    for member in listed {
                        prop_assert!(after.members().contains_key(member), "{frontend}: {member:?}");
                    }
                }
            }
            world.carried_out(&touched, &plan);
            agent.agrees(&before)?;
            agent.slots_are_whole()?;
            agent.range_is_exact()?;
            if !small {
                prop_assert_eq!(&agent.world.unprogrammed, &BTreeMap::new());
                agent.members_are_whole()?;
            }
        }
    }

    #[test]
    fn an_agent_that_starts_writes_only_differences(batch in changes(8)) {
        let mut agent = Agent::new(Capacity::default(), WhenFull::Leave);
        agent.settle(batch);
        let World { desired, installed, mut store, .. } = agent.world;
        let mut found = take_over(&mut store).unwrap();
        for installed in [&installed, &found] {
            let all: BTreeSet<ServiceId> =
                desired.services().cloned().chain(diff::orphans(&desired, installed)).collect();
            prop_assert_eq!(diff::plan(&desired, installed, &all, &mut Ration::default()).steps, vec![]);
        }

        // All Services were deleted while no agent ran.
        let nothing = Desired::default();
        let orphans = diff::orphans(&nothing, &found);
        let plan = diff::plan(&nothing, &found, &orphans, &mut Ration::default());
        commit(&plan, &mut store, &mut found).unwrap();
        for frontend in every_frontend() {
            prop_assert_eq!(store.resolve(&frontend), None);
        }
        prop_assert!(store.members().is_empty());
        prop_assert!(store.names().is_empty());
        for family in Family::BOTH {
            prop_assert_eq!(found.slots(family).available(), Capacity::default().slots);
            prop_assert_eq!(found.records(family).available(), Capacity::default().records());
        }
    }

    #[test]
    fn a_write_that_fails_breaks_no_frontend_and_planning_anew_mends_all(
        first in changes(6),
        second in changes(6),
        fail_at in 1usize..40,
    ) {
        let mut agent = Agent::new(Capacity::default(), WhenFull::Leave);
        agent.settle(first);
        let touched = agent.set(second);
        let world = &mut agent.world;
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
            world.carry_out(&all);
        }
        world.store.fail_at = None;
        agent.agrees(&[])?;
    }
}

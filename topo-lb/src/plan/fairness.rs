//! The guarantees of a tenant while the maps are full, for any tenants and any sequence of changes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use topo_lb_common::backend::Locality;

use super::capacity::Shortage;
use super::indexes::service_of;
use super::installed::Placed;
use super::share::{self, Pool, Rank, Ranks, Room};
use super::{Capacity, Desired, Installed, Lack, Meanwhile, Ration, WhenFull, diff};
use crate::cluster::{Frontend, Protocol, ServiceId};
use crate::datapath::maps::commit::commit;
use crate::datapath::maps::memory::MemoryStore;
use crate::topology::{Chosen, Route, Verdict};

const SMALL: Capacity = Capacity { services: 16, slots: 80, members: 80, flows: 8, connections: 0 };

fn id(tenant: u8, service: u8) -> ServiceId {
    let namespace = ["aaa", "mmm", "nnn", "zzz"][usize::from(tenant)];
    ServiceId { namespace: namespace.into(), name: format!("s{service}").as_str().into() }
}

#[derive(Clone, Copy, Debug)]
struct Wish {
    tenant: u8,
    service: u8,
    /// 0: the Service is deleted.
    ports: u8,
    endpoints: u8,
    /// Selects the endpoint addresses; a roll-out changes it.
    generation: u8,
    udp: bool,
    strict: bool,
}

const ONE: Wish = Wish {
    tenant: 0,
    service: 0,
    ports: 1,
    endpoints: 1,
    generation: 0,
    udp: false,
    strict: false,
};

impl Wish {
    fn id(&self) -> ServiceId {
        id(self.tenant, self.service)
    }

    fn routes(&self) -> Vec<Route> {
        let port = |port: u8| {
            let host = |host| IpAddr::from([10, self.generation, self.service, host]);
            let endpoint = |at| Chosen::new(SocketAddr::new(host(at), 80), Locality::from_byte(0));
            Route {
                frontends: vec![IpAddr::from([10, 96, self.tenant, self.service])],
                port: 80 + u16::from(port),
                protocol: if self.udp { Protocol::Udp } else { Protocol::Tcp },
                verdict: if self.endpoints == 0 { Verdict::Refuse } else { Verdict::Route },
                tier: None,
                endpoints: (0..self.endpoints).map(endpoint).collect(),
                wider: Vec::new(),
                spill: 0,
                strict: self.strict,
                affinity_seconds: None,
                serving: Vec::new(),
                name: format!("{}:p{port}", self.id()).as_str().into(),
            }
        };
        (0..self.ports).map(port).collect()
    }
}

fn wish() -> impl Strategy<Value = Wish> {
    // A Service keeps its protocol, and thus its frontends.
    let numbers = (0u8..4, 0u8..8, 0u8..4, 0u8..40, 0u8..3);
    (numbers, any::<bool>()).prop_map(
        |((tenant, service, ports, endpoints, generation), strict)| Wish {
            udp: service % 2 == 1,
            tenant,
            service,
            ports,
            endpoints,
            generation,
            strict,
        },
    )
}

struct World {
    desired: Desired,
    installed: Installed,
    store: MemoryStore,
    ration: Ration,
    unprogrammed: BTreeMap<ServiceId, Lack>,
    /// Services, within shares or strict, for which others may have given up room in the last
    /// `meet`.
    waited: BTreeSet<ServiceId>,
    refuses: bool,
}

impl World {
    fn new(capacity: Capacity, when_full: WhenFull) -> Self {
        Self {
            desired: Desired::default(),
            installed: Installed::new(capacity),
            store: MemoryStore::new(capacity),
            ration: Ration::new(when_full, 5),
            unprogrammed: BTreeMap::new(),
            waited: BTreeSet::new(),
            refuses: when_full == WhenFull::RefuseStrict,
        }
    }

    /// Plans and commits until nothing more fits, as the agent does. Returns the Services' ranks.
    fn meet(&mut self, wishes: &[Wish]) -> Ranks {
        let mut touched: BTreeSet<_> = std::mem::take(&mut self.unprogrammed).into_keys().collect();
        for wish in wishes {
            touched.extend(self.desired.set(wish.id(), wish.routes()));
        }
        self.ration.renew();
        self.waited.clear();
        let when_full = if self.refuses { WhenFull::RefuseStrict } else { WhenFull::Leave };
        let ranks = Ranks::new(&self.desired, &self.installed, when_full);
        for plans in 0.. {
            assert!(plans < 40, "it never settles: {:?}", self.unprogrammed);
            let plan = diff::plan(&self.desired, &self.installed, &touched, &mut self.ration);
            commit(&plan, &mut self.store, &mut self.installed).unwrap();
            let waits = |id: &&ServiceId| {
                is_within(&ranks, id) || self.refuses && self.desired.is_strict(id)
            };
            self.waited.extend(plan.unprogrammed.keys().filter(waits).cloned());
            let makes_room = plan.makes_room();
            self.unprogrammed = plan.unprogrammed;
            touched = self.unprogrammed.keys().cloned().collect();
            if !makes_room || touched.is_empty() {
                break;
            }
        }
        ranks
    }

    /// Frontends with endpoints, and their Services.
    fn serving(&self) -> BTreeMap<Frontend, ServiceId> {
        let serving = self.installed.placed().filter(|(_, placed)| placed.entry.count > 0);
        let whose = |(frontend, placed): (&Frontend, &Placed)| {
            let name = self.installed.indexes().name(placed.entry.index)?;
            Some((*frontend, service_of(name)?))
        };
        serving.filter_map(whose).collect()
    }

    /// Whether kube-proxy has a frontend of a strict Service, for another reason than that a new
    /// port of a serving Service lacks endpoints.
    fn leaks(&self, id: &ServiceId) -> bool {
        let last_good = Lack { of: Shortage::Endpoints, meanwhile: Meanwhile::LastGood };
        let targets = self.desired.targets(id).iter();
        self.desired.is_strict(id)
            && self.unprogrammed.get(id) != Some(&last_good)
            && targets.flat_map(|it| &it.frontends).any(|it| self.installed.get(it).is_none())
    }

    fn should_serve(&self, frontend: &Frontend, id: &ServiceId) -> bool {
        let targets = self.desired.targets(id).iter();
        let mut its = targets.filter(|target| target.frontends.contains(frontend));
        its.any(|target| target.entry(0).count > 0)
    }
}

fn is_within(ranks: &Ranks, id: &ServiceId) -> bool {
    ranks.of(id) == Rank::Within
}

fn lacks(meanwhile: Meanwhile) -> impl Fn(&Lack) -> bool {
    move |lack| lack.meanwhile == meanwhile
}

#[test]
fn a_tenant_that_fills_the_maps_leaves_others_their_shares() {
    let mut world = World::new(SMALL, WhenFull::Leave);
    let crowd: Vec<Wish> =
        (0..8).map(|service| Wish { service, ports: 2, endpoints: 9, udp: true, ..ONE }).collect();
    world.meet(&crowd);
    assert!(!world.unprogrammed.is_empty(), "they fit: this shows nothing");
    let few: Vec<Wish> =
        (0..2).map(|service| Wish { tenant: 3, endpoints: 4, ..crowd[service] }).collect();
    world.meet(&few);
    for wish in few {
        assert_eq!(world.unprogrammed.get(&wish.id()), None);
        assert!(share::serves(&world.installed, &wish.id()));
    }
}

#[test]
fn a_service_that_is_refused_is_not_displaced_by_a_new_one_of_its_namespace() {
    let capacity = Capacity { services: 2, slots: 0, members: 0, flows: 0, connections: 0 };
    let mut world = World::new(capacity, WhenFull::Leave);
    let refused = |service| Wish { service, endpoints: 0, strict: true, ..ONE };
    world.meet(&[refused(1), refused(2)]);
    assert_eq!(world.unprogrammed, BTreeMap::new());
    let new = Wish { endpoints: 1, strict: false, ..refused(0) };
    world.meet(&[new]);
    assert_eq!(world.unprogrammed.keys().collect::<Vec<_>>(), [&new.id()]);
}

#[test]
fn members_that_nobody_lists_any_more_make_room_for_those_that_come() {
    let mut world = World::new(SMALL, WhenFull::Leave);
    let small = |generation| Wish {
        tenant: 3,
        ports: 2,
        endpoints: 2,
        generation,
        udp: true,
        strict: true,
        ..ONE
    };
    let large = Wish { tenant: 1, service: 5, endpoints: 38, strict: false, ..small(0) };
    world.meet(&[large, small(0)]);
    assert_eq!(world.unprogrammed, BTreeMap::new());
    // Both roll out while no member is free.
    world.meet(&[Wish { endpoints: 1, generation: 1, ..large }, small(1)]);
    assert_eq!(world.unprogrammed, BTreeMap::new());
}

#[test]
fn a_strict_service_without_room_is_refused_where_that_is_asked_for() {
    for (when_full, wanted) in
        [(WhenFull::Leave, Meanwhile::KubeProxy), (WhenFull::RefuseStrict, Meanwhile::Refused)]
    {
        let mut world = World::new(SMALL, when_full);
        let large = Wish { endpoints: 200, strict: true, ..ONE };
        let soft = Wish { service: 1, strict: false, ..large };
        world.meet(&[large, soft]);
        assert!(lacks(wanted)(&world.unprogrammed[&large.id()]), "{:?}", world.unprogrammed);
        assert!(lacks(Meanwhile::KubeProxy)(&world.unprogrammed[&soft.id()]));
    }
}

#[test]
fn a_refusal_takes_the_frontend_of_a_soft_service_over_its_share() {
    let mut world = World::new(Capacity { services: 4, ..SMALL }, WhenFull::RefuseStrict);
    let one = Wish { service: 6, ..ONE };
    let two = Wish { service: 7, ports: 2, ..one };
    world.meet(&[one, two, Wish { tenant: 3, ..one }]);
    assert_eq!(world.unprogrammed, BTreeMap::new());
    // Two frontends are a share. The strict Service has more endpoints than its share.
    let strict = Wish { tenant: 3, service: 0, endpoints: 200, strict: true, ..one };
    world.meet(&[strict]);
    let unprogrammed: Vec<_> =
        world.unprogrammed.iter().map(|(id, lack)| (id, lack.meanwhile)).collect();
    let wanted = [(&two.id(), Meanwhile::KubeProxy), (&strict.id(), Meanwhile::Refused)];
    assert_eq!(unprogrammed, wanted);
}

#[test]
fn strict_services_get_frontends_before_other_services_of_their_namespace() {
    let one = |service, strict| Wish { service, strict, ..ONE };
    for count in [6, 8] {
        let mut world = World::new(Capacity { services: 8, ..SMALL }, WhenFull::RefuseStrict);
        world.meet(&(0..10).map(|service| one(service, false)).collect::<Vec<_>>());
        world.meet(&(10..10 + count).map(|service| one(service, true)).collect::<Vec<_>>());
        for service in 10..10 + count {
            assert_eq!(world.unprogrammed.get(&id(0, service)), None, "of {count}");
        }
        // The other Services have the rest.
        assert_eq!(world.installed.placed().count(), 8);
    }
}

#[test]
fn strict_services_with_too_many_endpoints_are_refused_before_others_get_frontends() {
    let one = |service| Wish { service, ..ONE };
    let mut world = World::new(Capacity { services: 8, ..SMALL }, WhenFull::RefuseStrict);
    world.meet(&(0..10).map(one).collect::<Vec<_>>());
    let large = |service| Wish { endpoints: 200, strict: true, ..one(service) };
    world.meet(&(10..16).map(large).collect::<Vec<_>>());
    for service in 10..16 {
        assert!(lacks(Meanwhile::Refused)(&world.unprogrammed[&id(0, service)]), "s{service}");
    }
}

#[test]
fn a_namespace_full_of_strict_services_leaves_others_the_frontends_for_their_refusals() {
    let one = |tenant, service| Wish { tenant, service, strict: true, ..ONE };
    let mut world = World::new(Capacity { services: 8, ..SMALL }, WhenFull::RefuseStrict);
    world.meet(&(0..20).map(|service| one(0, service)).collect::<Vec<_>>());
    world.meet(&[Wish { endpoints: 200, ..one(3, 0) }]);
    assert!(lacks(Meanwhile::Refused)(&world.unprogrammed[&id(3, 0)]), "{:?}", world.unprogrammed);
}

#[test]
fn a_new_port_of_a_strict_service_takes_the_frontend_of_another_service() {
    let one = |service, strict| Wish { service, strict, ..ONE };
    let mut world = World::new(Capacity { services: 8, ..SMALL }, WhenFull::RefuseStrict);
    world.meet(&(0..8).map(|service| one(service, service < 2)).collect::<Vec<_>>());
    assert_eq!(world.unprogrammed, BTreeMap::new());
    // Together with the other strict Service, one more than the namespace's share.
    world.meet(&[Wish { ports: 7, ..one(1, true) }]);
    assert_eq!(world.unprogrammed.get(&id(0, 1)), None);
    assert_eq!(world.unprogrammed.len(), 6);
}

#[test]
fn a_new_port_that_finds_no_room_leaves_the_others_as_they_were() {
    let mut world = World::new(Capacity { services: 4, ..SMALL }, WhenFull::Leave);
    let one = Wish { service: 6, ports: 2, ..ONE };
    world.meet(&[one, Wish { service: 7, ..one }]);
    let before: Vec<_> = world.installed.placed().map(|(frontend, _)| *frontend).collect();
    // The other Service comes first by name and takes all of the share but two.
    let three = Wish { service: 7, ports: 3, generation: 1, ..one };
    world.meet(&[three]);
    assert!(
        lacks(Meanwhile::LastGood)(&world.unprogrammed[&three.id()]),
        "{:?}",
        world.unprogrammed
    );
    let after: Vec<_> = world.installed.placed().map(|(frontend, _)| *frontend).collect();
    assert_eq!(before, after);
}

#[test]
fn new_members_that_find_no_room_leave_those_that_serve() {
    let capacity = Capacity { members: 10, ..SMALL };
    let mut world = World::new(capacity, WhenFull::Leave);
    let one = Wish { endpoints: 8, udp: true, strict: true, ..ONE };
    world.meet(&[one]);
    // All of the new members fit once the old ones are removed.
    world.meet(&[Wish { generation: 1, ..one }]);
    assert_eq!(world.unprogrammed, BTreeMap::new());
    world.meet(&[Wish { generation: 1, endpoints: 12, ..one }]);
    assert!(lacks(Meanwhile::Narrowed)(&world.unprogrammed[&one.id()]), "{:?}", world.unprogrammed);
    let (_, placed) = world.installed.placed().next().unwrap();
    assert_eq!(placed.entry.row.len(), 8);
}

#[test]
fn new_endpoints_that_find_no_slots_are_used_as_far_as_they_fit_inline() {
    let capacity = Capacity { slots: 30, ..SMALL };
    let mut world = World::new(capacity, WhenFull::Leave);
    let one = Wish { endpoints: 20, strict: true, ..ONE };
    world.meet(&[one]);
    // The old endpoints hold 20 of the 30 slots. The new ones fit once the old ones are removed.
    world.meet(&[Wish { generation: 1, ..one }]);
    assert_eq!(world.unprogrammed, BTreeMap::new());
    // These never all fit.
    world.meet(&[Wish { generation: 2, endpoints: 35, ..one }]);
    assert!(lacks(Meanwhile::Narrowed)(&world.unprogrammed[&one.id()]), "{:?}", world.unprogrammed);
    let (_, placed) = world.installed.placed().next().unwrap();
    assert_eq!(placed.entry.row.len(), 8);
    assert!(
        placed.entry.row.iter().all(|chosen| chosen.address().ip() > IpAddr::from([10, 2, 0, 0]))
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn no_service_within_its_share_lacks_what_one_over_its_share_has(
        batches in prop::collection::vec(prop::collection::vec(wish(), 1..6), 1..10),
        refuses: bool,
    ) {
        let when_full = if refuses { WhenFull::RefuseStrict } else { WhenFull::Leave };
        let mut world = World::new(SMALL, when_full);
        for batch in batches {
            let ranks = world.meet(&batch);
            let mut over = Room::default();
            for id in world.desired.services().filter(|id| !is_within(&ranks, id)) {
                let held = Room::held(&world.installed, id);
                Pool::ALL.iter().for_each(|&pool| over.add(pool, held.0[pool.place()] as usize));
            }
            for (id, lack) in world.unprogrammed.iter().filter(|(id, _)| is_within(&ranks, id)) {
                let short: Vec<Pool> =
                    Pool::ALL.into_iter().filter(|pool| pool.shortage() == lack.of).collect();
                let wanted = Room::wanted(&world.desired, id);
                let is_taken = short
                    .iter()
                    .any(|pool| wanted.0[pool.place()] > 0 && over.0[pool.place()] == 0);
                prop_assert!(is_taken, "{id} lacks {lack:?}; over their shares: {over:?}");
            }
        }
    }

    #[test]
    fn what_serves_goes_on_unless_somebody_within_its_share_needs_the_room(
        batches in prop::collection::vec(prop::collection::vec(wish(), 1..6), 1..10),
        refuses: bool,
    ) {
        let when_full = if refuses { WhenFull::RefuseStrict } else { WhenFull::Leave };
        let mut world = World::new(SMALL, when_full);
        for batch in batches {
            let before = world.serving();
            let ranks = world.meet(&batch);
            let after = world.serving();
            for (frontend, id) in before {
                if after.contains_key(&frontend) || !world.should_serve(&frontend, &id) { continue; }
                prop_assert!(!is_within(&ranks, &id), "{id} is within its share: {:?}", world.unprogrammed);
                prop_assert!(!world.waited.is_empty(), "{frontend} of {id} is lost for nothing");
            }
        }
    }

    /// A share is a quarter of seven eighths of the map: what fits into it is always installed.
    #[test]
    fn a_small_tenant_is_always_served(
        batches in prop::collection::vec(prop::collection::vec(wish(), 1..6), 1..10),
        endpoints in 1u8..8,
    ) {
        let mut world = World::new(SMALL, WhenFull::Leave);
        let small = |generation| Wish { tenant: 3, ports: 2, endpoints, generation, udp: true, strict: true, ..ONE };
        for (number, mut batch) in batches.into_iter().enumerate() {
            batch.retain(|wish| wish.tenant != 3);
            batch.push(small((number % 3) as u8));
            world.meet(&batch);
            prop_assert_eq!(world.unprogrammed.get(&id(3, 0)), None);
            prop_assert!(share::serves(&world.installed, &id(3, 0)));
        }
    }

    /// The same with slots: some may be missing while a Service's old endpoints hold others.
    #[test]
    fn a_small_tenant_with_endpoints_in_slots_is_always_served(
        batches in prop::collection::vec(prop::collection::vec(wish(), 1..6), 1..10),
        endpoints in 9u8..=17,
    ) {
        let mut world = World::new(SMALL, WhenFull::Leave);
        let small = |generation| Wish { tenant: 3, endpoints, generation, strict: true, ..ONE };
        for (number, mut batch) in batches.into_iter().enumerate() {
            batch.retain(|wish| wish.tenant != 3);
            batch.push(small((number % 3) as u8));
            world.meet(&batch);
            let unprogrammed = world.unprogrammed.get(&id(3, 0)).map(|lack| lack.meanwhile);
            prop_assert!(matches!(unprogrammed, None | Some(Meanwhile::Narrowed)), "{unprogrammed:?}");
            prop_assert!(share::serves(&world.installed, &id(3, 0)));
        }
    }

    #[test]
    fn where_all_fits_nothing_is_unprogrammed(
        batches in prop::collection::vec(prop::collection::vec(wish(), 1..6), 1..10),
    ) {
        let mut world = World::new(Capacity::default(), WhenFull::RefuseStrict);
        for batch in batches {
            world.meet(&batch);
            prop_assert_eq!(&world.unprogrammed, &BTreeMap::new());
        }
    }

    #[test]
    fn strict_services_leak_only_over_their_share_and_while_no_others_could_give_up_frontends(
        batches in prop::collection::vec(prop::collection::vec(wish(), 1..6), 1..10),
    ) {
        let mut world = World::new(SMALL, WhenFull::RefuseStrict);
        for batch in batches {
            let ranks = world.meet(&batch);
            let leaking: Vec<_> = world.desired.services().filter(|id| world.leaks(id)).collect();
            // Services within their share come first, even if no room can be made for them, as with
            // free slots that are not adjacent.
            let inside_waits = world.unprogrammed.keys().any(|id| is_within(&ranks, id));
            if leaking.is_empty() || inside_waits { continue; }
            for &id in &leaking {
                prop_assert_eq!(ranks.of(id), Rank::Refused, "{}: {:?}", id, world.unprogrammed);
            }
            let is_neighbour = |id: &ServiceId| {
                leaking.iter().any(|leaking| leaking.namespace == id.namespace)
            };
            let soft = world.desired.services().filter(|id| {
                !world.desired.is_strict(id)
                    && (ranks.of(id) == Rank::Over || is_neighbour(id))
                    && Room::held(&world.installed, id).0[Pool::Ports.place()] > 0
            });
            prop_assert_eq!(soft.count(), 0, "{:?}", world.unprogrammed);
        }
    }

    /// The frontends that a namespace's strict Services want within its share are always theirs.
    #[test]
    fn few_strict_services_never_leak(
        batches in prop::collection::vec(prop::collection::vec(wish(), 1..6), 1..10),
        endpoints in 0u8..100,
    ) {
        // At least three frontends for each of the four namespaces.
        let mut world = World::new(SMALL, WhenFull::RefuseStrict);
        for mut batch in batches {
            batch.iter_mut().filter(|wish| wish.tenant == 3).for_each(|wish| wish.strict = false);
            batch.retain(|wish| wish.tenant != 3 || wish.service != 7);
            batch.push(Wish { tenant: 3, service: 7, ports: 3, endpoints, strict: true, ..ONE });
            let ranks = world.meet(&batch);
            let inside_waits = world.unprogrammed.keys().any(|id| is_within(&ranks, id));
            prop_assert!(inside_waits || !world.leaks(&id(3, 7)), "{:?}", world.unprogrammed);
        }
    }
}

//! The guarantees of a tenant while the maps are full, for any tenants and any sequence of changes.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;
use topo_lb_common::backend::Locality;

use super::world::{World, route};
use crate::cluster::{Frontend, Protocol, ServiceId};
use crate::plan::capacity::Shortage;
use crate::plan::desired::Target;
use crate::plan::indexes::service_of;
use crate::plan::installed::Placed;
use crate::plan::share::{self, Pool, Rank, Ranks, Room};
use crate::plan::{Capacity, Lack, Meanwhile, WhenFull};
use crate::topology::Route;

const SMALL: Capacity = Capacity {
    services: 16,
    slots: 80,
    members: 80,
    flows: 8,
    connections: 0,
    sources: 0,
    hops: 0,
    spare: 2,
};

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
        let protocol = if self.udp { Protocol::Udp } else { Protocol::Tcp };
        let address = IpAddr::from([10, 96, self.tenant, self.service]);
        let endpoint = |host| {
            let ip = IpAddr::from([10, self.generation, self.service, host]);
            (SocketAddr::new(ip, 80), Locality::Node)
        };
        let port = |port: u8| Route {
            strict: self.strict,
            name: format!("{}:p{port}", self.id()).as_str().into(),
            ..route((address, 80 + u16::from(port), protocol), (0..self.endpoints).map(endpoint))
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

fn batches_of(wish: impl Strategy<Value = Wish>) -> impl Strategy<Value = Vec<Vec<Wish>>> {
    prop::collection::vec(prop::collection::vec(wish, 1..6), 1..10)
}

fn batches() -> impl Strategy<Value = Vec<Vec<Wish>>> {
    batches_of(wish())
}

/// Each tenant has one Service, with about its share of the slots or members. Roll-outs leave free
/// slots that are not adjacent, and members of old endpoints.
fn tight_batches() -> impl Strategy<Value = Vec<Vec<Wish>>> {
    any::<bool>().prop_flat_map(|udp| {
        let numbers = (0u8..4, 7u8..24, 0u8..3);
        batches_of(numbers.prop_map(move |(tenant, endpoints, generation)| Wish {
            tenant,
            endpoints,
            generation,
            udp,
            ..ONE
        }))
    })
}

/// Tenants and their maps. Its properties return how often they were put to the test.
struct Tenants {
    world: World,
    ranks: Ranks,
    /// The same, brought up to date with what `changed` instead of computed anew.
    updated: Ranks,
    changed: BTreeSet<ServiceId>,
    /// Services, within shares or strict, for which others may have given up room in the last
    /// `meet`.
    waited: BTreeSet<ServiceId>,
    when_full: WhenFull,
}

impl Tenants {
    fn new(capacity: Capacity, when_full: WhenFull) -> Self {
        let (waited, ranks, updated, changed) = Default::default();
        Self { world: World::new(capacity, when_full), ranks, updated, changed, waited, when_full }
    }

    /// Plans and commits until nothing more fits, as the agent does.
    fn meet(&mut self, wishes: &[Wish]) {
        let world = &mut self.world;
        let mut touched = world.set(wishes.iter().map(|wish| (wish.id(), wish.routes())));
        self.ranks = Ranks::new(&world.desired, &world.installed, self.when_full);
        self.changed.extend(touched.iter().cloned());
        let changed = std::mem::take(&mut self.changed);
        let (desired, installed) = (&world.desired, &world.installed);
        self.updated.update(desired, installed, self.when_full, changed.iter().collect());
        for id in desired.services() {
            assert_eq!(self.updated.of(id), self.ranks.of(id), "{id}");
        }
        self.waited.clear();
        for plans in 0.. {
            assert!(plans < 40, "it never settles: {:?}", world.unprogrammed);
            let plan = world.carry_out(&touched);
            self.changed.extend(touched.into_iter().chain(plan.unprogrammed.into_keys()));
            let waits = |id: &&ServiceId| {
                self.ranks.of(id) == Rank::Within || self.when_full.refuses(&world.desired, id)
            };
            self.waited.extend(world.unprogrammed.keys().filter(waits).cloned());
            touched = world.due();
            if touched.is_empty() {
                break;
            }
        }
    }

    /// What connections to a Service do that lacks room.
    fn meanwhile(&self, id: &ServiceId) -> Option<Meanwhile> {
        self.world.unprogrammed.get(id).map(|lack| lack.meanwhile)
    }

    fn is_within(&self, id: &ServiceId) -> bool {
        self.ranks.of(id) == Rank::Within
    }

    /// Whether a Service within its share lacks room: it comes before all others, even if no room
    /// can be made for it, as with free slots that are not adjacent.
    fn is_short_within(&self) -> bool {
        self.world.unprogrammed.keys().any(|id| self.is_within(id))
    }

    /// Frontends with endpoints, and their Services.
    fn serving(&self) -> BTreeMap<Frontend, ServiceId> {
        let installed = &self.world.installed;
        let serving = installed.placed().filter(|(_, placed)| placed.entry.count > 0);
        let whose = |(frontend, placed): (&Frontend, &Placed)| {
            let name = installed.indexes().name(placed.entry.index)?;
            Some((*frontend, service_of(name)?))
        };
        serving.filter_map(whose).collect()
    }

    /// Whether kube-proxy has a frontend of a strict Service, for another reason than that a new
    /// port of a serving Service lacks endpoints.
    fn leaks(&self, id: &ServiceId) -> bool {
        let last_good = Lack { of: Shortage::Endpoints, meanwhile: Meanwhile::LastGood };
        let World { desired, installed, unprogrammed, .. } = &self.world;
        desired.is_strict(id)
            && unprogrammed.get(id) != Some(&last_good)
            && desired
                .targets(id)
                .iter()
                .flat_map(Target::frontends)
                .any(|it| installed.get(&it).is_none())
    }

    fn should_serve(&self, frontend: &Frontend, id: &ServiceId) -> bool {
        let targets = self.world.desired.targets(id).iter();
        let mut its = targets.filter(|target| target.frontends().any(|own| own == *frontend));
        its.any(|target| target.entry(0).count > 0)
    }

    fn no_service_within_its_share_lacks_what_one_over_its_share_has(
        &self,
    ) -> Result<usize, TestCaseError> {
        let World { desired, installed, unprogrammed, .. } = &self.world;
        let mut over = Room::default();
        for id in desired.services().filter(|id| !self.is_within(id)) {
            let held = Room::held(installed, id);
            Pool::ALL.iter().for_each(|&pool| over.add(pool, held.0[pool.place()] as usize));
        }
        for (id, lack) in unprogrammed.iter().filter(|(id, _)| self.is_within(id)) {
            let wanted = Room::wanted(desired, id);
            let mut short = Pool::ALL.into_iter().filter(|pool| pool.shortage() == lack.of);
            let is_taken =
                short.any(|pool| wanted.0[pool.place()] > 0 && over.0[pool.place()] == 0);
            prop_assert!(is_taken, "{id} lacks {lack:?}; over their shares: {over:?}");
        }
        Ok(unprogrammed.keys().filter(|id| self.is_within(id)).count())
    }

    fn what_serves_goes_on_unless_somebody_within_its_share_needs_the_room(
        &self,
        before: &BTreeMap<Frontend, ServiceId>,
    ) -> Result<usize, TestCaseError> {
        let after = self.serving();
        let mut lost: Vec<_> =
            before.iter().filter(|(frontend, _)| !after.contains_key(frontend)).collect();
        lost.retain(|(frontend, id)| self.should_serve(frontend, id));
        for (frontend, id) in &lost {
            prop_assert!(!self.is_within(id), "{id}: {:?}", self.world.unprogrammed);
            prop_assert!(!self.waited.is_empty(), "{frontend} of {id} is lost for nothing");
        }
        Ok(lost.len())
    }

    fn strict_services_leak_only_over_their_share_and_while_no_others_could_give_up_frontends(
        &self,
    ) -> Result<usize, TestCaseError> {
        let World { desired, installed, unprogrammed, .. } = &self.world;
        let leaking: Vec<_> = desired.services().filter(|id| self.leaks(id)).collect();
        if self.is_short_within() {
            return Ok(0);
        }
        for id in &leaking {
            prop_assert_eq!(self.ranks.of(id), Rank::Refused, "{}: {:?}", id, unprogrammed);
        }
        let is_neighbour = |id: &ServiceId| leaking.iter().any(|it| it.namespace == id.namespace);
        let soft = desired.services().filter(|id| {
            !desired.is_strict(id)
                && (self.ranks.of(id) == Rank::Over || is_neighbour(id))
                && Room::held(installed, id).0[Pool::Ports.place()] > 0
        });
        let could = if leaking.is_empty() { 0 } else { soft.count() };
        prop_assert_eq!(could, 0, "{:?}", unprogrammed);
        Ok(leaking.len())
    }
}

#[test]
fn a_service_that_is_refused_is_not_displaced_by_a_new_one_of_its_namespace() {
    let capacity = Capacity {
        services: 2,
        slots: 0,
        members: 0,
        flows: 0,
        connections: 0,
        sources: 0,
        hops: 0,
        spare: 2,
    };
    let mut tenants = Tenants::new(capacity, WhenFull::Leave);
    let refused = |service| Wish { service, endpoints: 0, strict: true, ..ONE };
    tenants.meet(&[refused(1), refused(2)]);
    assert_eq!(tenants.world.unprogrammed, BTreeMap::new());
    let new = Wish { endpoints: 1, strict: false, ..refused(0) };
    tenants.meet(&[new]);
    assert_eq!(tenants.world.unprogrammed.keys().collect::<Vec<_>>(), [&new.id()]);
}

#[test]
fn members_that_nobody_lists_any_more_make_room_for_those_that_come() {
    let mut tenants = Tenants::new(SMALL, WhenFull::Leave);
    let two = Wish { ports: 2, endpoints: 2, udp: true, ..ONE };
    let small = Wish { tenant: 3, strict: true, ..two };
    let large = Wish { tenant: 1, service: 5, endpoints: 38, ..two };
    tenants.meet(&[large, small]);
    assert_eq!(tenants.world.unprogrammed, BTreeMap::new());
    // Both roll out while no member is free.
    let generation = 1;
    tenants.meet(&[Wish { endpoints: 1, generation, ..large }, Wish { generation, ..small }]);
    assert_eq!(tenants.world.unprogrammed, BTreeMap::new());
}

#[test]
fn a_strict_service_without_room_is_refused_where_that_is_asked_for() {
    for (when_full, wanted) in
        [(WhenFull::Leave, Meanwhile::KubeProxy), (WhenFull::RefuseStrict, Meanwhile::Refused)]
    {
        let mut tenants = Tenants::new(SMALL, when_full);
        let large = Wish { endpoints: 200, strict: true, ..ONE };
        let soft = Wish { service: 1, strict: false, ..large };
        tenants.meet(&[large, soft]);
        assert_eq!(tenants.meanwhile(&large.id()), Some(wanted));
        assert_eq!(tenants.meanwhile(&soft.id()), Some(Meanwhile::KubeProxy));
    }
}

#[test]
fn a_refusal_takes_the_frontend_of_a_soft_service_over_its_share() {
    let mut tenants = Tenants::new(Capacity { services: 4, ..SMALL }, WhenFull::RefuseStrict);
    let one = Wish { service: 6, ..ONE };
    let two = Wish { service: 7, ports: 2, ..one };
    tenants.meet(&[one, two, Wish { tenant: 3, ..one }]);
    assert_eq!(tenants.world.unprogrammed, BTreeMap::new());
    // Two frontends are a share. The strict Service has more endpoints than its share.
    let strict = Wish { tenant: 3, service: 0, endpoints: 200, strict: true, ..one };
    tenants.meet(&[strict]);
    assert_eq!(tenants.world.unprogrammed.len(), 2);
    assert_eq!(tenants.meanwhile(&two.id()), Some(Meanwhile::KubeProxy));
    assert_eq!(tenants.meanwhile(&strict.id()), Some(Meanwhile::Refused));
}

#[test]
fn strict_services_get_frontends_before_other_services_of_their_namespace() {
    // Those with too many endpoints get them for their refusals.
    for (count, endpoints, meanwhile) in
        [(6, 1, None), (8, 1, None), (6, 200, Some(Meanwhile::Refused))]
    {
        let one = |service| Wish { service, ..ONE };
        let mut tenants = Tenants::new(Capacity { services: 8, ..SMALL }, WhenFull::RefuseStrict);
        tenants.meet(&(0..10).map(one).collect::<Vec<_>>());
        let strict = |service| Wish { endpoints, strict: true, ..one(service) };
        tenants.meet(&(10..10 + count).map(strict).collect::<Vec<_>>());
        for service in 10..10 + count {
            assert_eq!(tenants.meanwhile(&id(0, service)), meanwhile, "s{service} of {count}");
        }
        // The other Services have the rest.
        assert_eq!(tenants.world.installed.placed().count(), 8);
    }
}

#[test]
fn a_namespace_full_of_strict_services_leaves_others_the_frontends_for_their_refusals() {
    let one = |tenant, service| Wish { tenant, service, strict: true, ..ONE };
    let mut tenants = Tenants::new(Capacity { services: 8, ..SMALL }, WhenFull::RefuseStrict);
    tenants.meet(&(0..20).map(|service| one(0, service)).collect::<Vec<_>>());
    tenants.meet(&[Wish { endpoints: 200, ..one(3, 0) }]);
    assert_eq!(tenants.meanwhile(&id(3, 0)), Some(Meanwhile::Refused));
}

#[test]
fn a_new_port_of_a_strict_service_takes_the_frontend_of_another_service() {
    let one = |service, strict| Wish { service, strict, ..ONE };
    let mut tenants = Tenants::new(Capacity { services: 8, ..SMALL }, WhenFull::RefuseStrict);
    tenants.meet(&(0..8).map(|service| one(service, service < 2)).collect::<Vec<_>>());
    assert_eq!(tenants.world.unprogrammed, BTreeMap::new());
    // Together with the other strict Service, one more than the namespace's share.
    tenants.meet(&[Wish { ports: 7, ..one(1, true) }]);
    assert_eq!(tenants.meanwhile(&id(0, 1)), None);
    assert_eq!(tenants.world.unprogrammed.len(), 6);
}

#[test]
fn a_new_port_that_finds_no_room_leaves_the_others_as_they_were() {
    let mut tenants = Tenants::new(Capacity { services: 4, ..SMALL }, WhenFull::Leave);
    let one = Wish { service: 6, ports: 2, ..ONE };
    tenants.meet(&[one, Wish { service: 7, ..one }]);
    let before: Vec<_> = tenants.serving().into_keys().collect();
    assert_eq!(before.len(), 4);
    // The other Service comes first by name and takes all of the share but two.
    let three = Wish { service: 7, ports: 3, generation: 1, ..one };
    tenants.meet(&[three]);
    assert_eq!(tenants.meanwhile(&three.id()), Some(Meanwhile::LastGood));
    assert_eq!(tenants.serving().into_keys().collect::<Vec<_>>(), before);
}

#[test]
fn new_endpoints_that_find_no_room_are_used_as_far_as_they_fit_inline() {
    // Of UDP Services, members are scarce; of others with many endpoints, slots.
    for (capacity, wish, more) in [
        (Capacity { members: 10, ..SMALL }, Wish { endpoints: 8, udp: true, ..ONE }, 12),
        (Capacity { slots: 30, ..SMALL }, Wish { endpoints: 20, ..ONE }, 35),
    ] {
        let mut tenants = Tenants::new(capacity, WhenFull::Leave);
        let one = |generation| Wish { generation, strict: true, ..wish };
        tenants.meet(&[one(0)]);
        // All of the new endpoints fit once the old ones are removed.
        tenants.meet(&[one(1)]);
        assert_eq!(tenants.world.unprogrammed, BTreeMap::new());
        // These never all fit. Members stay; slots are written anew.
        let generation = if wish.udp { 1 } else { 2 };
        tenants.meet(&[Wish { endpoints: more, ..one(generation) }]);
        assert_eq!(tenants.meanwhile(&wish.id()), Some(Meanwhile::Narrowed));
        let (_, placed) = tenants.world.installed.placed().next().unwrap();
        assert_eq!(placed.entry.row.len(), 6);
        let newest = IpAddr::from([10, generation, 0, 0]);
        assert!(placed.entry.row.iter().all(|chosen| chosen.address().ip() >= newest));
    }
}

#[test]
fn scarce_room_is_divided_by_shares() {
    let tested = Cell::new([0; 3]);
    let batches = prop_oneof![batches(), tight_batches()];
    proptest!(ProptestConfig::with_cases(600), |(batches in batches, refuses: bool, narrows: bool)| {
        let when_full = if refuses { WhenFull::RefuseStrict } else { WhenFull::Leave };
        let mut tenants = Tenants::new(SMALL, when_full);
        tenants.world.narrow(narrows);
        for batch in batches {
            let before = tenants.serving();
            tenants.meet(&batch);
            let mut sum = tested.get();
            // A few endpoints stay with those over their shares where no kube-proxy is.
            if !narrows {
                sum[0] += tenants.no_service_within_its_share_lacks_what_one_over_its_share_has()?;
            }
            sum[1] += tenants.what_serves_goes_on_unless_somebody_within_its_share_needs_the_room(&before)?;
            if refuses {
                sum[2] += tenants.strict_services_leak_only_over_their_share_and_while_no_others_could_give_up_frontends()?;
            }
            tested.set(sum);
        }
    });
    let is_enough =
        tested.get().into_iter().zip([10, 10, 1]).all(|(times, enough)| times >= enough);
    assert!(is_enough, "hardly put to the test: {tested:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A share is a quarter of seven eighths of the map: what fits into it is always installed. Some
    /// slots may be missing while the Service's old endpoints hold others.
    #[test]
    fn a_small_tenant_is_always_served(
        batches in batches(),
        few in 1u8..8,
        many in 9u8..=17,
        in_slots: bool,
    ) {
        let mut tenants = Tenants::new(SMALL, WhenFull::Leave);
        let small = |generation| match in_slots {
            true => Wish { tenant: 3, endpoints: many, generation, strict: true, ..ONE },
            false => Wish { ports: 2, endpoints: few, udp: true, tenant: 3, generation, strict: true, ..ONE },
        };
        for (number, mut batch) in batches.into_iter().enumerate() {
            batch.retain(|wish| wish.tenant != 3);
            batch.push(small((number % 3) as u8));
            tenants.meet(&batch);
            let meanwhile = tenants.meanwhile(&id(3, 0));
            prop_assert!(meanwhile.is_none() || in_slots && meanwhile == Some(Meanwhile::Narrowed), "{meanwhile:?}");
            prop_assert!(share::serves(&tenants.world.installed, &id(3, 0)));
        }
    }

    /// The frontends that a namespace's strict Services want within its share are always theirs.
    #[test]
    fn few_strict_services_never_leak(batches in batches(), endpoints in 0u8..100) {
        // At least three frontends for each of the four namespaces.
        let mut tenants = Tenants::new(SMALL, WhenFull::RefuseStrict);
        for mut batch in batches {
            batch.iter_mut().filter(|wish| wish.tenant == 3).for_each(|wish| wish.strict = false);
            batch.retain(|wish| wish.tenant != 3 || wish.service != 7);
            batch.push(Wish { tenant: 3, service: 7, ports: 3, endpoints, strict: true, ..ONE });
            tenants.meet(&batch);
            let unprogrammed = &tenants.world.unprogrammed;
            prop_assert!(tenants.is_short_within() || !tenants.leaks(&id(3, 7)), "{unprogrammed:?}");
        }
    }
}

//! What direct dials get, which takes frontends.

use topo_lb_common::backend::Locality;

use super::world::{World, route};
use crate::cluster::{Clients, Family, Frontend, FrontendKind, Protocol, ServiceId};
use crate::plan::{Capacity, Desired, Meanwhile, WhenFull};
use crate::topology::{Chosen, Route, Verdict};

const NAME: &str = "default/a:http";

fn id() -> ServiceId {
    ServiceId { namespace: "default".into(), name: "a".into() }
}

/// The Service port for its ClusterIP, with so many endpoints.
fn served(endpoints: u8) -> Route {
    let endpoint = |host| (([10, 244, 1, host], 8_080).into(), Locality::Node);
    let served = route(([10, 96, 0, 1].into(), 80, Protocol::Tcp), (1..=endpoints).map(endpoint));
    Route { name: NAME.into(), ..served }
}

fn far(host: u8) -> Frontend {
    Frontend::new([10, 244, 9, host].into(), 8_080, Protocol::Tcp)
}

/// The same port for clients that dial so many far endpoints.
fn refusing(endpoints: u8) -> Route {
    let frontends = (1..=endpoints).map(|host| (FrontendKind::Endpoint, far(host))).collect();
    Route { frontends, endpoints: Vec::new(), verdict: Verdict::Refuse, ..served(0) }
}

/// The same port for steered Pods that dial so many far endpoints.
fn steering(served: &Route, endpoints: u8) -> Route {
    let far = |host| (FrontendKind::Endpoint, far(host).of(Clients::Steered));
    Route { frontends: (1..=endpoints).map(far).collect(), ..served.clone() }
}

fn set(world: &mut World, routes: Vec<Route>) {
    set_of(world, id(), routes);
}

fn set_of(world: &mut World, id: ServiceId, routes: Vec<Route>) {
    let touched = world.desired.set(id, routes);
    world.ration.renew(&touched);
    world.carry_out(&touched);
    world.free_later();
}

fn resolved(world: &World, frontend: &Frontend) -> Option<Vec<Chosen>> {
    world.store.resolve(frontend)
}

#[test]
fn a_service_is_served_before_direct_dials_of_it_are_refused() {
    for narrows in [false, true] {
        let capacity = Capacity { services: 16, ..Capacity::default() };
        let mut world = World::new(capacity, WhenFull::Leave);
        world.narrow(narrows);
        for (endpoints, far_ones, fits) in
            [(3, 20, false), (2, 4, true), (5, 4, true), (4, 20, false), (1, 1, true)]
        {
            let served = served(endpoints);
            let (cluster_ip, wanted) = (served.frontends[0].1, served.endpoints.clone());
            set(&mut world, vec![served, refusing(far_ones)]);
            assert_eq!(resolved(&world, &cluster_ip), Some(wanted));
            let meanwhile = world.unprogrammed.get(&id()).map(|lack| lack.meanwhile);
            assert_eq!(meanwhile, (!fits).then_some(Meanwhile::DirectDials), "{far_ones}");
            for host in 1..=20 {
                let refused = (fits && host <= far_ones).then(Vec::new);
                assert_eq!(resolved(&world, &far(host)), refused, "{host} of {far_ones}");
            }
        }
    }
}

#[test]
fn an_address_that_a_service_port_has_itself_is_served_though_an_endpoint_has_it_too() {
    let mut world = World::new(Capacity::default(), WhenFull::Leave);
    for endpoints in [2, 3, 3, 1] {
        let mut served = served(endpoints);
        // Also twice, as a load balancer IP and an external IP.
        for kind in [FrontendKind::LoadBalancerIp, FrontendKind::ExternalIp] {
            served.frontends.push((kind, far(1)));
        }
        let wanted = served.endpoints.clone();
        set(&mut world, vec![served, refusing(2)]);
        assert_eq!(resolved(&world, &far(1)), Some(wanted));
        assert_eq!(resolved(&world, &far(2)), Some(Vec::new()));
        let refuses = |host| {
            let Frontend { address, port, .. } = far(host);
            world.desired.refuses_dials_of((address, port).into())
        };
        assert_eq!([1, 2, 3].map(refuses), [false, true, false], "as a probe is told");
        let records = world.installed.records(Family::V4).available();
        assert_eq!(records, Capacity::default().records() - 3, "each has one");
    }
}

#[test]
fn steered_pods_take_frontends_and_no_room_for_endpoints() {
    for lists_all in [false, true] {
        let mut world =
            World::new(Capacity { services: 16, ..Capacity::default() }, WhenFull::Leave);
        world.desired = Desired::new(lists_all);
        for (endpoints, far_ones, fits) in [
            (20, 4, true),
            (20, 20, false),
            (9, 15, true),
            (3, 15, true),
            (3, 16, false),
            (1, 1, true),
        ] {
            let served = served(endpoints);
            let (cluster_ip, wanted) = (served.frontends[0].1, served.endpoints.clone());
            let slots = if endpoints > 6 { u32::from(endpoints) } else { 0 };
            set(&mut world, vec![served.clone(), steering(&served, far_ones)]);
            assert_eq!(resolved(&world, &cluster_ip).as_ref(), Some(&wanted));
            let meanwhile = world.unprogrammed.get(&id()).map(|lack| lack.meanwhile);
            assert_eq!(meanwhile, (!fits).then_some(Meanwhile::DirectDials), "{far_ones}");
            for host in 1..=20 {
                let near = (fits && host <= far_ones).then(|| wanted.clone());
                assert_eq!(resolved(&world, &far(host).of(Clients::Steered)), near, "{host}");
                assert_eq!(resolved(&world, &far(host)), None, "others are left alone");
            }
            let free = world.installed.slots(Family::V4).available();
            assert_eq!(Capacity::default().slots - free, slots, "one row for all");
            let members = world.store.members().len();
            assert_eq!(members, if lists_all { endpoints.into() } else { 0 });
        }
        set(&mut world, Vec::new());
        assert_eq!(world.installed.records(Family::V4).available(), 16 + 512);
    }
}

#[test]
fn what_somebody_else_claims_too_is_left_alone() {
    let other = ServiceId { namespace: "tenant".into(), name: "b".into() };
    let is_steered = |world: &World| resolved(world, &far(1).of(Clients::Steered));
    let served = served(2);
    let near = Some(served.endpoints.clone());
    // Of another Service: what steers, what refuses, and its own address.
    let address = Route { frontends: vec![(FrontendKind::ClusterIp, far(1))], ..served.clone() };
    let refusing = Route { name: "tenant/b:http".into(), ..refusing(1) };
    let steers = Route { name: "tenant/b:http".into(), ..steering(&served, 1) };
    let address = Route { name: "tenant/b:http".into(), ..address };
    for (theirs, plain) in [(steers, None), (refusing, Some(Vec::new())), (address, near.clone())] {
        let mut world = World::new(Capacity::default(), WhenFull::Leave);
        let ours = || vec![served.clone(), steering(&served, 2)];
        set(&mut world, ours());
        assert_eq!((is_steered(&world), resolved(&world, &far(1))), (near.clone(), None));
        set_of(&mut world, other.clone(), vec![theirs.clone()]);
        assert_eq!((is_steered(&world), resolved(&world, &far(1))), (None, plain.clone()));
        assert_eq!(resolved(&world, &far(2).of(Clients::Steered)), near, "the other is ours");
        // Nor in the other order.
        set(&mut world, Vec::new());
        set(&mut world, ours());
        assert_eq!((is_steered(&world), resolved(&world, &far(1))), (None, plain));
        set_of(&mut world, other.clone(), Vec::new());
        assert_eq!((is_steered(&world), resolved(&world, &far(1))), (near.clone(), None));
    }
}

//! The refusal of direct dials, which takes frontends.

use topo_lb_common::backend::Locality;

use super::world::{World, route};
use crate::cluster::{Family, Frontend, FrontendKind, Protocol, ServiceId};
use crate::plan::{Capacity, Meanwhile, WhenFull};
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

fn set(world: &mut World, routes: Vec<Route>) {
    let touched = world.desired.set(id(), routes);
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

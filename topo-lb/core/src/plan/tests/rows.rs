//! Rows of slots: who shares them, and what Services get for which there are none.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use topo_lb_common::backend::Locality;
use topo_lb_common::selection::HASHED;

use super::world::{World, route};
use crate::cluster::{Clients, Family, Frontend, FrontendKind, Protocol, ServiceId};
use crate::plan::commit::take_over;
use crate::plan::{Capacity, Desired, Meanwhile, Member, Ration, Step, WhenFull};
use crate::topology::{Chosen, Route, Verdict};

fn id(name: &str) -> ServiceId {
    ServiceId { namespace: "default".into(), name: name.into() }
}

/// The endpoints of a Service port, all for the same target port.
fn endpoints(port: u16, count: u16) -> impl Iterator<Item = (SocketAddr, Locality)> {
    (0..count).map(move |host| {
        let [high, low] = host.to_be_bytes();
        (SocketAddr::from(([10, 244, high, low], 8_000 + port)), Locality::Zone)
    })
}

/// A port of a node-port Service with a ClusterIP, an address of the node, and loopback.
fn port(service: &str, number: u8, port: u16, count: u16) -> Route {
    let cluster_ip = ([10, 96, 0, number].into(), 80 + port, Protocol::Tcp);
    let mut route = route(cluster_ip, endpoints(port, count));
    route.name = format!("{service}:{port}").as_str().into();
    for address in [[192, 0, 2, 1], [127, 0, 0, 1]] {
        let node_port = 30_000 + u16::from(number) * 1_000 + port;
        let frontend = Frontend::new(address.into(), node_port, Protocol::Tcp);
        route.frontends.push((FrontendKind::NodePort, frontend));
    }
    route
}

fn bases(world: &World) -> BTreeSet<u32> {
    world.installed.placed().filter_map(|(_, placed)| placed.slot_base).collect()
}

fn used(world: &World) -> u32 {
    world.installed.capacity().slots - world.installed.slots(Family::V4).available()
}

#[test]
fn a_node_port_service_of_100_ports_and_1000_endpoints_fits_into_the_default_slots() {
    let mut world = World::new(Capacity::default(), WhenFull::Leave);
    let ports: Vec<_> = (0..100).map(|at| port("default/large", 1, at, 1_000)).collect();
    let touched = world.set([(id("large"), ports)]);
    world.carry_out(&touched);
    assert!(world.unprogrammed.is_empty(), "{:?}", world.unprogrammed);
    assert_eq!(world.installed.frontends_in(Family::V4), 300);
    assert_eq!(used(&world), 100_000);
}

#[test]
fn a_frontend_that_comes_later_uses_the_row_that_is_there_and_leaves_it_to_the_others() {
    let mut world = World::new(Capacity::default(), WhenFull::Leave);
    let whole = port("default/a", 1, 0, 20);
    let only = |places: &[usize]| {
        let frontends = places.iter().map(|place| whole.frontends[*place]).collect();
        vec![Route { frontends, ..whole.clone() }]
    };
    for places in [&[0][..], &[0, 1, 2], &[1, 2], &[2], &[0, 2], &[]] {
        let touched = world.set([(id("a"), only(places))]);
        world.carry_out(&touched);
        let rows = usize::from(!places.is_empty());
        assert_eq!(bases(&world).len(), rows, "{places:?}");
        for place in places {
            let row = world.store.resolve(&whole.frontends[*place].1);
            assert_eq!(row.as_deref(), Some(&*whole.endpoints), "{places:?}");
        }
    }
    world.free_later();
    assert_eq!(used(&world), 0);
}

#[test]
fn clients_outside_share_the_row_only_while_they_get_the_same_endpoints() {
    let mut world = World::new(Capacity::default(), WhenFull::Leave);
    let mut inside = port("default/a", 1, 0, 20);
    let (_, address) = inside.frontends.remove(1);
    let outside = |count| Route {
        frontends: vec![(FrontendKind::NodePort, address.of(Clients::Outside))],
        ..port("default/a", 1, 0, count)
    };
    for (count, rows, slots) in [(20, 1, 20), (15, 2, 35), (20, 1, 20)] {
        let touched = world.set([(id("a"), vec![inside.clone(), outside(count)])]);
        world.carry_out(&touched);
        world.free_later();
        assert_eq!((bases(&world).len(), used(&world)), (rows, slots), "{count}");
    }
}

/// `slots` and `members` for three Services of 30 endpoints, and the reserve.
const TIGHT: Capacity = Capacity {
    services: 64,
    slots: 112,
    members: 112,
    flows: 0,
    connections: 0,
    sources: 0,
    hops: 0,
    spare: 2,
};

#[test]
fn without_kube_proxy_a_new_service_without_room_gets_a_few_of_its_endpoints() {
    for (number, (lists_all, narrows)) in
        [(false, true), (true, true), (false, false), (true, false)].into_iter().enumerate()
    {
        let mut world = World::new(TIGHT, WhenFull::Leave);
        world.desired = Desired::new(lists_all);
        world.narrow(narrows);
        let names: Vec<String> = (0..6_u8).map(|at| format!("s{at}")).collect();
        for (at, name) in (0..).zip(&names) {
            let one = port(&format!("default/{name}"), at, 0, 30);
            let touched = world.set([(id(name), vec![one])]);
            world.carry_out(&touched);
        }
        let meanwhile = if narrows { Meanwhile::Narrowed } else { Meanwhile::KubeProxy };
        let short: Vec<_> =
            world.unprogrammed.iter().map(|(id, it)| (&*id.name, it.meanwhile)).collect();
        let wanted: Vec<_> = names[3..].iter().map(|name| (&**name, meanwhile)).collect();
        assert_eq!(short, wanted, "case {number}");
        for (at, name) in (0..).zip(&names) {
            let frontends = port(name, at, 0, 30).frontends;
            let rows: Vec<_> = frontends.iter().map(|(_, it)| world.store.resolve(it)).collect();
            let length = rows[0].as_ref().map(Vec::len);
            let wanted = if at < 3 {
                Some(30)
            } else if narrows {
                Some(6)
            } else {
                None
            };
            assert_eq!(length, wanted, "case {number}: {name}");
            assert!(rows.iter().all(|row| *row == rows[0]), "case {number}: {name}");
        }
        // The next plan writes nothing, and one that makes room has all served by all.
        let all: BTreeSet<_> = world.desired.services().cloned().collect();
        assert_eq!(world.carry_out(&all).steps, vec![], "case {number}");
        let gone = names[..3].iter().map(|name| (id(name), Vec::new()));
        let mut touched = world.set(gone);
        while !touched.is_empty() {
            world.carry_out(&touched);
            touched = world.due();
        }
        assert!(world.unprogrammed.is_empty(), "case {number}: {:?}", world.unprogrammed);
    }
}

#[test]
fn a_small_service_takes_of_the_reserve_and_is_whole() {
    let mut world = World::new(TIGHT, WhenFull::Leave);
    world.desired = Desired::new(true);
    world.narrow(true);
    for at in 0..6 {
        let count = if at < 3 { 30 } else { 5 };
        let name = format!("s{at}");
        let one = port(&format!("default/{name}"), at, 0, count);
        let touched = world.set([(id(&name), vec![one])]);
        world.carry_out(&touched);
        assert!(world.unprogrammed.is_empty(), "{name}: {:?}", world.unprogrammed);
    }
}

#[test]
fn nodes_choose_other_endpoints_where_not_all_fit() {
    let chosen = |node: u64| {
        let mut world = World::new(Capacity { slots: 10, members: 10, ..TIGHT }, WhenFull::Leave);
        world.ration = Ration::new(WhenFull::Leave, node).narrowing(true);
        let one = port("default/a", 1, 0, 30);
        let frontend = one.frontends[0].1;
        let touched = world.set([(id("a"), vec![one])]);
        world.carry_out(&touched);
        world.store.resolve(&frontend).expect("it is published")
    };
    assert_ne!(chosen(3), chosen(13));
    assert_eq!(chosen(3), chosen(3));
}

/// A Service with `count` endpoints for clients outside, who choose consistently, and none for other nodes.
fn consistent(count: u16, node: u16) -> Vec<Route> {
    let mut outside = port("default/a", 1, 0, count);
    outside.frontends.truncate(1);
    let frontend = outside.frontends[0].1;
    let kind = FrontendKind::LoadBalancerIp;
    let nodes = endpoints(0, count).map(|(at, _)| (at, node)).collect();
    outside.frontends = vec![(kind, frontend.of(Clients::Outside))];
    outside = Route { consistent: true, nodes, ..outside };
    let anywhere = Route {
        frontends: vec![(kind, frontend)],
        consistent: false,
        nodes: outside.nodes.clone(),
        ..outside.clone()
    };
    let peers = Route {
        frontends: vec![(kind, frontend.of(Clients::Peers))],
        verdict: Verdict::Refuse,
        consistent: false,
        serving: outside.endpoints.iter().map(Chosen::address).collect(),
        endpoints: Vec::new(),
        nodes: outside.nodes.clone(),
        ..outside.clone()
    };
    vec![anywhere, outside, peers]
}

#[test]
fn a_consistent_choice_takes_slots_and_the_agent_keeps_no_table() {
    let mut world = World::new(Capacity::default(), WhenFull::Leave);
    for (count, slots) in [(1, 0), (2, 1_601), (16, 16 + 1_601), (100, 100 + 12_809), (0, 0)] {
        let touched = world.set([(id("a"), consistent(count, 0))]);
        world.carry_out(&touched);
        world.free_later();
        assert_eq!(used(&world), slots, "{count}");
        let rows = world.installed.placed().map(|(_, placed)| placed.entry.row.len());
        assert!(rows.max() <= Some(count.into()), "{count}");
        let outside = consistent(count, 0)[1].frontends[0].1;
        let entry = &world.installed.get(&outside).expect("it is published").entry;
        let (spill, length) = if count > 0 { (HASHED, slots.max(1)) } else { (0, 0) };
        assert_eq!(entry.spill, spill);
        let table = world.store.resolve(&outside).unwrap();
        assert_eq!(table.len(), usize::from(entry.count));
        assert!(u32::from(entry.count) <= length);
        let peers = outside.of(Clients::Peers);
        assert_eq!(world.store.resolve(&peers), Some(vec![]), "its being there says it");
    }
}

#[test]
fn members_have_the_tag_of_their_node_as_long_as_the_service_takes_part() {
    let mut world = World::new(Capacity::default(), WhenFull::Leave);
    world.desired = Desired::new(true);
    for (node, writes) in [(7, 20), (7, 0), (9, 20), (0, 20), (0, 0)] {
        let touched = world.set([(id("a"), consistent(20, node))]);
        let plan = world.carry_out(&touched);
        let written = plan.steps.iter().filter(|step| matches!(step, Step::SetMember { .. }));
        assert_eq!(written.count(), writes, "{node}");
        let members: Vec<_> = world.store.members().values().copied().collect();
        assert_eq!(members, vec![Member::new(true, node); 20]);
        let all: BTreeSet<_> = world.desired.services().cloned().collect();
        world.installed = take_over(&mut world.store).unwrap();
        assert_eq!(world.carry_out(&all).steps, vec![], "{node}");
    }
}

#[test]
fn without_room_for_its_table_a_service_has_a_few_of_its_endpoints() {
    let mut world = World::new(Capacity { slots: 1_000, ..TIGHT }, WhenFull::Leave);
    world.narrow(true);
    let routes = consistent(20, 0);
    let touched = world.set([(id("a"), routes.clone())]);
    world.carry_out(&touched);
    let meanwhile: Vec<_> = world.unprogrammed.values().map(|it| it.meanwhile).collect();
    assert_eq!(meanwhile, [Meanwhile::Narrowed]);
    let few = world.store.resolve(&routes[1].frontends[0].1).expect("it is published");
    assert_eq!(few.len(), 6);
    let entry = &world.installed.get(&routes[1].frontends[0].1).unwrap().entry;
    assert_eq!((entry.spill, &entry.table), (0, &None));
}

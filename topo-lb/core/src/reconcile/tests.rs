use topo_lb_common::backend::Locality;

use super::*;
use crate::cluster::service::Skipped;
use crate::cluster::{
    Change, Endpoint, Exposure, Labels, Node, Placement, Port, Protocol, REGION, Service, Slice,
    SliceId, ZONE, ZoneRegion,
};
use crate::counted;
use crate::plan::commit::commit;
use crate::plan::memory::MemoryStore;
use crate::plan::store::Store as _;
use crate::plan::{Capacity, Meanwhile, Shortage};

fn id(name: &str) -> ServiceId {
    ServiceId { namespace: "default".into(), name: name.into() }
}

fn service(name: &str, host: u8) -> Service {
    Service {
        id: id(name),
        cluster_ips: vec![[10, 96, 0, host].into()],
        ports: vec![Port { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
        ..Service::default()
    }
}

/// Plans and commits like the agent. Returns the names of the installed Service ports.
fn settle(reconciler: &mut Reconciler, store: &mut MemoryStore) -> Vec<String> {
    planned(reconciler, store);
    store.names().values().cloned().collect()
}

/// Plans and commits like the agent. Returns the names of the Services that each plan was made for.
fn planned(reconciler: &mut Reconciler, store: &mut MemoryStore) -> Vec<Vec<String>> {
    let mut installed = store.installed().unwrap();
    let mut plans = Vec::new();
    while !reconciler.settled() {
        let plan = reconciler.plan(&installed);
        commit(&plan, store, &mut installed).unwrap();
        plans.push(reconciler.unsettled.iter().map(|id| id.name.to_string()).collect());
        reconciler.carried_out(&plan, &installed);
        assert!(plans.len() < 10, "it never settles");
    }
    plans
}

#[test]
fn a_row_that_is_computed_anew_and_has_not_changed_is_in_memory_once() {
    let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
    let mut installed = Installed::new(Capacity::default());
    reconciler.observe(Update::Service(Change::Applied(service("a", 1))));
    let plan = reconciler.plan(&installed);
    plan.steps.iter().for_each(|step| installed.record(step));
    reconciler.carried_out(&plan, &installed);
    let node = Node { name: "n".into(), labels: Labels::default() };
    assert!(reconciler.observe(Update::Node(Change::Applied(node))));
    assert_eq!(reconciler.plan(&installed), Plan::default());
    let (_, placed) = installed.placed().next().expect("a Service is published");
    let desired = reconciler.desired.targets(&id("a"))[0].entry(0).row;
    assert!(Arc::ptr_eq(&placed.entry.row, &desired));
}

#[test]
fn what_has_no_room_gets_the_room_that_the_same_change_makes() {
    let mut store = MemoryStore::new(Capacity {
        services: 1,
        slots: 0,
        members: 0,
        flows: 0,
        connections: 0,
        sources: 0,
        hops: 0,
        spare: 2,
    });
    let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
    reconciler.observe(Update::Service(Change::Applied(service("a", 1))));
    assert_eq!(settle(&mut reconciler, &mut store), ["default/a:http"]);

    reconciler.observe(Update::Service(Change::Deleted(id("a"))));
    reconciler.observe(Update::Service(Change::Applied(service("b", 2))));
    assert_eq!(settle(&mut reconciler, &mut store), ["default/b:http"]);

    reconciler.observe(Update::Service(Change::Applied(service("c", 3))));
    assert_eq!(settle(&mut reconciler, &mut store), ["default/b:http"]);
    let lack = Lack { of: Shortage::Services, meanwhile: Meanwhile::KubeProxy };
    assert_eq!(reconciler.unprogrammed().get(&id("c")), Some(&lack));
}

#[test]
fn what_has_no_room_is_left_to_kube_proxy_only_where_one_is() {
    for (narrows, meanwhile) in [(false, Meanwhile::KubeProxy), (true, Meanwhile::Nobody)] {
        let mut store = MemoryStore::new(Capacity { services: 1, slots: 0, ..ROOM });
        let mut reconciler = Reconciler::new("n".into(), Scope::All, false).narrowing(narrows);
        for (name, host) in [("a", 1), ("b", 2)] {
            reconciler.observe(Update::Service(Change::Applied(service(name, host))));
        }
        assert_eq!(settle(&mut reconciler, &mut store), ["default/a:http"]);
        let lack = Lack { of: Shortage::Services, meanwhile };
        assert_eq!(reconciler.unprogrammed().get(&id("b")), Some(&lack));
    }
}

const ROOM: Capacity = Capacity {
    services: 8,
    slots: 8,
    members: 0,
    flows: 0,
    connections: 0,
    sources: 0,
    hops: 0,
    spare: 2,
};

fn node(name: &str) -> Update {
    let labels = [("rack".into(), "1".into())].into();
    Update::Node(Change::Applied(Node { name: name.into(), labels }))
}

fn keyed(keys: &str) -> Update {
    let mut service = service("a", 1);
    Arc::make_mut(&mut service.policy).topology_keys = Some(keys.into());
    Update::Service(Change::Applied(service))
}

/// The endpoints of Service `a` on these nodes.
fn slice(nodes: &[&str]) -> Update {
    let endpoint =
        |(at, node): (u8, &&str)| Endpoint::new([10, 1, 1, at].into(), Placement::on(*node));
    slice_of(id("a"), (1..).zip(nodes).map(endpoint).collect())
}

/// A Service's endpoints.
fn slice_of(service: ServiceId, endpoints: Vec<Endpoint>) -> Update {
    Update::Slice(Change::Applied(Slice {
        id: SliceId { namespace: Arc::clone(&service.namespace), name: Arc::clone(&service.name) },
        service: Some(service),
        ports: vec![Port { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
        endpoints,
        headless: false,
        mirrored: false,
        triggered: None,
        ready_since: Vec::new(),
    }))
}

/// How many endpoints are installed for every frontend.
fn counts(store: &mut MemoryStore) -> Vec<usize> {
    let installed = store.installed().unwrap();
    installed.placed().map(|(_, placed)| placed.entry.row.len()).collect()
}

#[test]
fn a_service_that_reads_other_nodes_stays_as_it_was_until_all_are_known() {
    let mut store = MemoryStore::new(ROOM);
    let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
    for update in
        [Update::KnownNodes(KnownNodes::Own), node("n"), keyed("*"), slice(&["n", "m", "l"])]
    {
        reconciler.observe(update);
    }
    settle(&mut reconciler, &mut store);
    assert_eq!((reconciler.reads_other_nodes(), counts(&mut store)), (None, vec![3]));

    // The labels known now match only the endpoint on this node.
    reconciler.observe(keyed("rack"));
    settle(&mut reconciler, &mut store);
    assert_eq!(counts(&mut store), [3]);
    assert_eq!(reconciler.reads_other_nodes(), Some((&id("a"), "rack")));
    assert_eq!(reconciler.waiting(), 1);
    // One of two other Nodes is not enough.
    reconciler.observe(node("m"));
    settle(&mut reconciler, &mut store);
    assert_eq!(counts(&mut store), [3]);
    let other = Node { name: "l".into(), labels: Labels::default() };
    reconciler.observe(Update::Node(Change::Applied(other)));
    assert!(reconciler.observe(Update::KnownNodes(KnownNodes::All)));
    settle(&mut reconciler, &mut store);
    assert_eq!((reconciler.waiting(), counts(&mut store)), (0, vec![2]));

    // Forgetting labels that no Service reads changes nothing.
    reconciler.observe(keyed("*"));
    settle(&mut reconciler, &mut store);
    assert_eq!((reconciler.reads_other_nodes(), counts(&mut store)), (None, vec![3]));
    reconciler.observe(Update::KnownNodes(KnownNodes::Own));
    reconciler.observe(Update::Node(Change::Listed(Vec::new(), vec!["n".into()])));
    settle(&mut reconciler, &mut store);
    assert_eq!((reconciler.waiting(), counts(&mut store)), (0, vec![3]));
}

/// The distances of the installed endpoints, in order of their zones.
fn localities(store: &mut MemoryStore) -> Vec<Locality> {
    let installed = store.installed().unwrap();
    let mut row: Vec<_> = installed.placed().flat_map(|(_, it)| it.entry.row.to_vec()).collect();
    row.sort_by_key(|one| one.address());
    row.into_iter().map(|one| one.locality).collect()
}

#[test]
fn the_same_is_counted_as_region_whichever_nodes_are_watched() {
    let labels = |all: [(&str, &str); 2]| all.map(|(key, value)| (key.into(), value.into())).into();
    let places = [("n", "a", "r1"), ("m", "b", "r1"), ("l", "c", "r2"), ("k", "d", "r1")];
    let nodes = places.map(|(name, zone, region)| {
        let labels = labels([(ZONE, zone), (REGION, region)]);
        Update::Node(Change::Applied(Node { name: name.into(), labels }))
    });
    let endpoints = (1..).zip(places).map(|(at, (node, zone, _))| {
        let labels = [(ZONE.into(), zone.into())].into();
        Endpoint::new([10, 1, 1, at].into(), Placement { labels, ..Placement::on(node) })
    });
    let objects = [keyed("*"), slice_of(id("a"), endpoints.collect())];
    let region = |zone: &str, region: &str| {
        Update::ZoneRegion(ZoneRegion { zone: zone.into(), region: region.into() })
    };
    let wanted = [Locality::Node, Locality::Region, Locality::Elsewhere, Locality::Region];

    let (mut store, mut all) =
        (MemoryStore::new(ROOM), Reconciler::new("n".into(), Scope::All, false));
    for update in nodes.clone().into_iter().chain(objects.clone()) {
        all.observe(update);
    }
    settle(&mut all, &mut store);
    assert_eq!(localities(&mut store), wanted);

    let (mut store, mut own) =
        (MemoryStore::new(ROOM), Reconciler::new("n".into(), Scope::All, false));
    let [node, ..] = nodes;
    let first = [Update::KnownNodes(KnownNodes::Own), node, region("b", "r1")];
    for update in first.into_iter().chain(objects) {
        own.observe(update);
    }
    settle(&mut own, &mut store);
    let unknown = [Locality::Node, Locality::Region, Locality::Elsewhere, Locality::Elsewhere];
    assert_eq!(localities(&mut store), unknown);
    assert!(own.observe(region("d", "r1")), "its endpoint's distance changes");
    own.observe(region("c", "r2"));
    assert!(!own.observe(region("d", "r1")), "nothing new");
    settle(&mut own, &mut store);
    assert_eq!(localities(&mut store), wanted);
    assert_eq!(own.reads_other_nodes(), None);
}

#[test]
fn one_service_that_reads_no_more_does_not_hide_another() {
    let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
    for update in [node("n"), node("m"), keyed("rack"), slice(&["n", "m"])] {
        reconciler.observe(update);
    }
    let b = id("b");
    let mut other = service("b", 2);
    Arc::make_mut(&mut other.policy).topology_keys = Some("rack".into());
    reconciler.observe(Update::Service(Change::Applied(other)));
    let Update::Slice(Change::Applied(mut its)) = slice(&["m"]) else { unreachable!() };
    (its.id.name, its.service) = ("b-1".into(), Some(b.clone()));
    reconciler.observe(Update::Slice(Change::Applied(its)));
    reconciler.survey();
    // No plan yet: the agent may not write to the maps.
    reconciler.observe(Update::Service(Change::Deleted(id("a"))));
    assert_eq!(reconciler.reads_other_nodes(), Some((&b, "rack")));
}

#[test]
fn what_the_last_agent_installed_for_a_service_that_waits_is_not_taken_away() {
    let mut store = MemoryStore::new(ROOM);
    let mut before = Reconciler::new("n".into(), Scope::All, false);
    for update in [node("n"), node("m"), keyed("rack"), slice(&["n", "m"])] {
        before.observe(update);
    }
    settle(&mut before, &mut store);
    assert_eq!(counts(&mut store), [2]);
    let mut after = Reconciler::new("n".into(), Scope::All, false);
    for update in
        [Update::KnownNodes(KnownNodes::Own), node("n"), keyed("rack"), slice(&["n", "m"])]
    {
        after.observe(update);
    }
    after.expect_all(&store.installed().unwrap());
    settle(&mut after, &mut store);
    assert_eq!(counts(&mut store), [2]);
    after.survey();
    assert!(after.reads_other_nodes().is_some());
}

/// A Service of a namespace, with so many endpoints.
fn put(reconciler: &mut Reconciler, namespace: &str, host: u8, endpoints: u32) {
    let id = ServiceId { namespace: namespace.into(), name: format!("s{host}").as_str().into() };
    let service = Service { id: id.clone(), ..service("", host) };
    reconciler.observe(Update::Service(Change::Applied(service)));
    let endpoint = |at| {
        let [_, high, middle, low] = u32::to_be_bytes(at);
        Endpoint::new([10, host ^ high, middle, low].into(), Placement::default())
    };
    reconciler.observe(slice_of(id, (0..endpoints).map(endpoint).collect()));
}

#[test]
fn what_lacks_room_costs_the_changes_of_others_nothing() {
    let room = |size| Capacity { slots: size, members: size, services: 64, ..ROOM };
    for narrows in [true, false] {
        let mut store = MemoryStore::new(room(299));
        let mut reconciler = Reconciler::new("n".into(), Scope::All, true).narrowing(narrows);
        put(&mut reconciler, "calm", 100, 8);
        planned(&mut reconciler, &mut store);
        for host in 1..=8 {
            put(&mut reconciler, "greedy", host, 100);
        }
        planned(&mut reconciler, &mut store);
        let lacking = reconciler.unprogrammed().clone();
        assert_eq!(lacking.len(), 6, "{lacking:?}");
        // More endpoints, fewer, none, a Service that comes, one that goes, and as before.
        for (host, endpoints) in [(100, 9), (100, 7), (100, 0), (101, 7), (101, 0), (100, 8)] {
            put(&mut reconciler, "calm", host, endpoints);
            let plans = planned(&mut reconciler, &mut store);
            assert_eq!(plans, [[format!("s{host}")]], "{endpoints} endpoints, narrows: {narrows}");
        }
        assert_eq!(*reconciler.unprogrammed(), lacking);
        // One of those with room goes: one of the others gets it.
        let gone = ServiceId { namespace: "greedy".into(), name: "s1".into() };
        reconciler.observe(Update::Service(Change::Deleted(gone)));
        planned(&mut reconciler, &mut store);
        assert_eq!(reconciler.unprogrammed().len(), 5);
    }
}

#[test]
fn small_services_are_planned_before_large_ones_and_each_of_these_alone() {
    let mut store = MemoryStore::new(Capacity { slots: 300_000, services: 64, ..ROOM });
    let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
    for host in 1..=3 {
        put(&mut reconciler, "a", host, 66_000 + u32::from(host));
    }
    put(&mut reconciler, "b", 4, 1);
    let mut installed = store.installed().unwrap();
    for names in [&["s1", "s4"][..], &["s5", "s2"], &["s3"]] {
        let plan = reconciler.plan(&installed);
        let mut planned: Vec<&str> = reconciler.unsettled.iter().map(|id| &*id.name).collect();
        planned.sort_unstable();
        let mut names = names.to_vec();
        names.sort_unstable();
        assert_eq!(planned, names);
        commit(&plan, &mut store, &mut installed).unwrap();
        reconciler.carried_out(&plan, &installed);
        if names.contains(&"s1") {
            put(&mut reconciler, "b", 5, 1);
        }
    }
    assert!(reconciler.settled());
}

/// A reconciler that handles everything, and maps with room for a few Services.
fn small() -> (Reconciler, MemoryStore) {
    let reconciler = Reconciler::new("n".into(), Scope::All, false);
    let store = MemoryStore::new(Capacity { services: 64, ..ROOM });
    (reconciler.exposing(Some(Exposing::everything())), store)
}

/// Service `a` with so many ports, each at so many external IPs beside its ClusterIP.
fn wide(ports: u16, addresses: u16) -> Service {
    let named = |port: u16| format!("p{port}").as_str().into();
    let port = |port| Port { name: named(port), port, protocol: Protocol::Tcp };
    let address = |at: u16| {
        let [high, low] = at.to_be_bytes();
        [203, 0, high, low].into()
    };
    let external_ips = (0..addresses).map(address).collect();
    Service {
        ports: (1..=ports).map(port).collect(),
        exposure: Some(Arc::new(Exposure { external_ips, ..Exposure::default() })),
        ..service("a", 1)
    }
}

fn put_service(reconciler: &mut Reconciler, service: Service) {
    reconciler.observe(Update::Service(Change::Applied(service)));
}

#[test]
fn a_service_whose_ports_have_too_many_addresses_is_left_out_before_it_takes_memory() {
    let (mut reconciler, mut store) = small();
    put_service(&mut reconciler, service("b", 2));
    put_service(&mut reconciler, wide(1_000, 1_000));
    let (names, done) = counted::during(|| settle(&mut reconciler, &mut store));
    assert_eq!(names, ["default/b:http"], "others are served");
    assert!(done.total < 1_000_000, "{} bytes for a million frontends", done.total);
    let lack = Lack { of: Shortage::TooManyFrontends, meanwhile: Meanwhile::KubeProxy };
    assert_eq!(*reconciler.unprogrammed(), BTreeMap::from([(id("a"), lack)]));

    // Changes of others are planned alone, and it stays left out.
    put_service(&mut reconciler, service("c", 3));
    assert_eq!(planned(&mut reconciler, &mut store), [["c"]]);
    assert_eq!(*reconciler.unprogrammed(), BTreeMap::from([(id("a"), lack)]));

    // With fewer it is served; with too many again, it is not.
    put_service(&mut reconciler, wide(2, 20));
    assert_eq!(settle(&mut reconciler, &mut store).len(), 4);
    assert_eq!(*reconciler.unprogrammed(), BTreeMap::new());
    put_service(&mut reconciler, wide(3, 21));
    assert_eq!(settle(&mut reconciler, &mut store), ["default/b:http", "default/c:http"]);
    assert_eq!(*reconciler.unprogrammed(), BTreeMap::from([(id("a"), lack)]));
    reconciler.observe(Update::Service(Change::Deleted(id("a"))));
    settle(&mut reconciler, &mut store);
    assert_eq!(*reconciler.unprogrammed(), BTreeMap::new());
}

#[test]
fn as_many_frontends_as_the_maps_hold_are_not_too_many() {
    // 2 ports at a ClusterIP and 31 external IPs; then one more.
    for (addresses, of) in [(31, None), (32, Some(Shortage::TooManyFrontends))] {
        let (mut reconciler, mut store) = small();
        put_service(&mut reconciler, wide(2, addresses));
        settle(&mut reconciler, &mut store);
        let lack = reconciler.unprogrammed().get(&id("a"));
        assert_eq!(lack.map(|it| it.of), of, "{addresses} addresses");
        assert_eq!(store.names().len(), if of.is_none() { 2 } else { 0 });
    }
}

#[test]
fn a_service_whose_ports_have_too_many_endpoints_is_left_out_before_it_takes_memory() {
    for (narrows, meanwhile) in [(false, Meanwhile::KubeProxy), (true, Meanwhile::Nobody)] {
        let (reconciler, mut store) = small();
        let mut reconciler = reconciler.narrowing(narrows);
        put_service(&mut reconciler, service("b", 2));
        // Within the maps: 60 ports at a ClusterIP. All have 2,000 endpoints.
        let wide = wide(60, 0);
        let endpoint = |at: u16| {
            let [high, low] = at.to_be_bytes();
            Endpoint::new([10, 1, high, low].into(), Placement::default())
        };
        let Update::Slice(Change::Applied(slice)) =
            slice_of(id("a"), (0..2_000).map(endpoint).collect())
        else {
            unreachable!()
        };
        let slice = Slice { ports: wide.ports.clone(), ..slice };
        reconciler.observe(Update::Slice(Change::Applied(slice)));
        put_service(&mut reconciler, wide);
        let (names, done) = counted::during(|| settle(&mut reconciler, &mut store));
        assert_eq!(names, ["default/b:http"]);
        assert!(done.total < 200_000, "{} bytes for 120,000 endpoints", done.total);
        let lack = Lack { of: Shortage::TooManyEndpoints, meanwhile };
        assert_eq!(*reconciler.unprogrammed(), BTreeMap::from([(id("a"), lack)]));
    }
}

#[test]
fn only_what_would_be_served_is_said_to_be_too_large() {
    let is_said = |change: fn(&mut Service)| {
        let mut service = wide(1_000, 1_000);
        change(&mut service);
        let (mut reconciler, mut store) = small();
        put_service(&mut reconciler, service);
        settle(&mut reconciler, &mut store);
        let lacks: Vec<_> = reconciler.unprogrammed().values().map(|lack| lack.of).collect();
        assert!(lacks.iter().all(|of| of.is_too_large()), "{lacks:?}");
        !lacks.is_empty()
    };
    assert!(is_said(|_| {}));
    assert!(!is_said(|it| Arc::make_mut(&mut it.policy).handle = Some("false".into())));
    assert!(!is_said(|it| it.skipped = Some(Skipped::OtherProxy)));
    assert!(!is_said(|it| it.cluster_ips.clear()));
}

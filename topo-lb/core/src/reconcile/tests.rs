use super::*;
use crate::cluster::{
    Change, Endpoint, Labels, Node, Placement, Port, Protocol, Service, Slice, SliceId,
};
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
    let mut installed = store.installed().unwrap();
    let mut plans = 0;
    while !reconciler.settled() {
        let plan = reconciler.plan(&installed);
        commit(&plan, store, &mut installed).unwrap();
        reconciler.carried_out(&plan);
        plans += 1;
        assert!(plans < 10, "it never settles");
    }
    store.names().values().cloned().collect()
}

#[test]
fn a_row_that_is_computed_anew_and_has_not_changed_is_in_memory_once() {
    let mut reconciler = Reconciler::new("n".into(), Scope::All, false);
    let mut installed = Installed::new(Capacity::default());
    reconciler.observe(Update::Service(Change::Applied(service("a", 1))));
    let plan = reconciler.plan(&installed);
    plan.steps.iter().for_each(|step| installed.record(step));
    reconciler.carried_out(&plan);
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

const ROOM: Capacity =
    Capacity { services: 8, slots: 8, members: 0, flows: 0, connections: 0, sources: 0, spare: 2 };

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
    Update::Slice(Change::Applied(Slice {
        id: SliceId { namespace: "default".into(), name: "a-1".into() },
        service: Some(id("a")),
        ports: vec![Port { name: "http".into(), port: 80, protocol: Protocol::Tcp }],
        endpoints: (1..).zip(nodes).map(endpoint).collect(),
        headless: false,
        triggered: None,
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

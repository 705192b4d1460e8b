//! State does not depend on the way to it, and no change of routes goes unsaid.

use std::collections::BTreeMap;

use proptest::test_runner::{Config, TestRunner};
use topo_lb::cluster::{Change, ServiceId, State, Update};
use topo_lb::topology::{self, Route, Scope};

use crate::made::{Cluster, Otherwise, Z, endpoint, id, keyed, node, service, slice};
use crate::random;

fn all_routes(state: &State, this_node: &str) -> BTreeMap<ServiceId, Vec<Route>> {
    let routes = |id: &ServiceId| topology::routes(state, this_node, Scope::All, id);
    state.services().map(|id| (id.clone(), routes(id))).collect()
}

/// The last object of every name.
#[derive(Default)]
struct Last(Cluster);

impl Last {
    fn take(&mut self, update: Update) {
        let Cluster { nodes, services, slices } = &mut self.0;
        match update {
            Update::Service(Change::Applied(new)) => {
                services.retain(|old| old.id != new.id);
                services.push(new);
            }
            Update::Service(Change::Deleted(id)) => services.retain(|old| old.id != id),
            Update::Slice(Change::Applied(new)) => {
                slices.retain(|old| old.id != new.id);
                slices.push(new);
            }
            Update::Slice(Change::Deleted(id)) => slices.retain(|old| old.id != id),
            Update::Node(Change::Applied(new)) => {
                nodes.retain(|old| old.name != new.name);
                nodes.push(new);
            }
            Update::Node(Change::Deleted(name)) => nodes.retain(|old| old.name != name),
            Update::Service(Change::Listed(all, unread)) => {
                services.retain(|old| unread.contains(&old.id));
                services.retain(|old| all.iter().all(|new| new.id != old.id));
                services.extend(all);
            }
            Update::Slice(Change::Listed(all, unread)) => {
                slices.retain(|old| unread.contains(&old.id));
                slices.retain(|old| all.iter().all(|new| new.id != old.id));
                slices.extend(all);
            }
            Update::Node(Change::Listed(all, unread)) => {
                nodes.retain(|old| unread.contains(&old.name));
                nodes.retain(|old| all.iter().all(|new| new.name != old.name));
                nodes.extend(all);
            }
            Update::LocalAddresses(_) => {}
            // Says how much is known, and changes no object.
            Update::KnownNodes(_) => {}
        }
    }
}

#[test]
fn any_sequence_of_updates_ends_as_if_started_afresh_and_every_change_is_named() {
    let config = Config { cases: 3_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&random::tapes(600), |tape| {
        let (updates, this_node) = random::updates(&tape);
        let mut state = State::default();
        let mut last = Last::default();
        let mut before = BTreeMap::new();
        for update in updates {
            last.take(update.clone());
            let changed = state.apply(update.clone(), this_node);
            let after = all_routes(&state, this_node);
            let ids = before.keys().chain(after.keys());
            for id in ids.filter(|id| before.get(*id) != after.get(*id)) {
                assert!(changed.services.contains(id), "{id} changed unsaid by {update:?}");
            }
            let again = state.apply(update, this_node);
            assert_eq!(again.services.len(), 0, "the same again changes nothing");
            before = after;
        }
        let afresh = last.0.state(this_node);
        assert_eq!(state, afresh);
        assert_eq!(before, all_routes(&afresh, this_node));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

/// Services `one` on n1 and `two` on n2, and a third without endpoints; this node is n1.
fn three() -> State {
    let mut cluster = Cluster {
        nodes: vec![node("n1", &[(Z, "a")]), node("n2", &[(Z, "b")]), node("n3", &[])],
        ..Cluster::default()
    };
    for (name, on) in [("one", "n1"), ("two", "n2")] {
        let mut service = keyed(Z);
        service.id = id(name);
        let mut slice = slice(name, vec![endpoint("10.0.0.1", on)]);
        slice.service = Some(id(name));
        cluster.services.push(service);
        cluster.slices.push(slice);
    }
    cluster.services.push(service());
    cluster.state("n1")
}

fn names(changed: topo_lb::cluster::Changed) -> Vec<String> {
    changed.services.iter().map(|id| id.name.to_string()).collect()
}

#[test]
fn a_slice_touches_its_service_alone() {
    let mut state = three();
    let mut changed = slice("two", vec![endpoint("10.0.0.2", "n2")]);
    changed.service = Some(id("two"));
    assert_eq!(names(state.apply(Update::Slice(Change::Applied(changed.clone())), "n1")), ["two"]);
    changed.endpoints[0] = changed.endpoints[0].clone().draining();
    assert_eq!(names(state.apply(Update::Slice(Change::Applied(changed.clone())), "n1")), ["two"]);
    assert_eq!(
        names(state.apply(Update::Slice(Change::Deleted(changed.id.clone())), "n1")),
        ["two"]
    );
    assert_eq!(names(state.apply(Update::Slice(Change::Deleted(changed.id)), "n1")), [""; 0]);
}

#[test]
fn a_slice_that_moves_to_another_service_touches_both() {
    let mut state = three();
    let mut moved = slice("two", vec![endpoint("10.0.0.1", "n2")]);
    moved.service = Some(id("one"));
    assert_eq!(
        names(state.apply(Update::Slice(Change::Applied(moved.clone())), "n1")),
        ["one", "two"]
    );
    moved.service = None;
    assert_eq!(names(state.apply(Update::Slice(Change::Applied(moved)), "n1")), ["one"]);
}

#[test]
fn another_node_touches_the_services_that_have_endpoints_there() {
    let mut state = three();
    assert_eq!(
        names(state.apply(Update::Node(Change::Applied(node("n2", &[(Z, "a")]))), "n1")),
        ["two"]
    );
    assert_eq!(names(state.apply(Update::Node(Change::Deleted("n2".into())), "n1")), ["two"]);
    assert_eq!(
        names(state.apply(Update::Node(Change::Applied(node("n3", &[(Z, "a")]))), "n1")),
        [""; 0]
    );
    let all = vec![node("n1", &[(Z, "a")]), node("n2", &[])];
    assert_eq!(names(state.apply(Update::Node(Change::Listed(all, vec![])), "n1")), ["two"]);
}

#[test]
fn this_node_touches_every_service() {
    let mut state = three();
    assert_eq!(
        names(state.apply(Update::Node(Change::Applied(node("n1", &[]))), "n1")),
        ["one", "svc", "two"]
    );
    assert_eq!(
        names(state.apply(Update::Node(Change::Deleted("n1".into())), "n1")),
        ["one", "svc", "two"]
    );
    assert_eq!(names(state.apply(Update::Node(Change::Deleted("n1".into())), "n1")), [""; 0]);
}

#[test]
fn a_listing_touches_what_differs_and_what_is_gone() {
    let mut state = three();
    let mut one = keyed(Z);
    one.id = id("one");
    let mut new = service();
    new.id = id("new");
    let all = vec![one, new];
    assert_eq!(
        names(state.apply(Update::Service(Change::Listed(all, vec![])), "n1")),
        ["new", "svc", "two"]
    );
    assert_eq!(names(state.apply(Update::Slice(Change::Listed(vec![], vec![])), "n1")), ["one"]);
    assert!(state.service(&id("two")).is_none());
}

#[test]
fn what_a_listing_names_but_could_not_read_stays_as_it_was() {
    let mut state = three();
    let before = state.clone();
    let services = Update::Service(Change::Listed(vec![], ["one", "two", "svc"].map(id).to_vec()));
    assert_eq!(names(state.apply(services, "n1")), [""; 0]);
    let slices = before.services().flat_map(|id| before.slices(id)).map(|(id, _)| id.clone());
    assert_eq!(
        names(state.apply(Update::Slice(Change::Listed(vec![], slices.collect())), "n1")),
        [""; 0]
    );
    let nodes = before.nodes().map(|(name, _)| name.into()).collect();
    assert_eq!(names(state.apply(Update::Node(Change::Listed(vec![], nodes)), "n1")), [""; 0]);
    assert!(state == before);
    // What was not there before does not come to be.
    let unknown = Update::Service(Change::Listed(vec![], vec![id("one"), id("unknown")]));
    assert_eq!(names(state.apply(unknown, "n1")), ["svc", "two"]);
    assert!(state.service(&id("unknown")).is_none());
}

#[test]
fn slices_that_come_before_their_service_wait_for_it() {
    let mut state = State::default();
    let early = slice("svc-1", vec![endpoint("10.0.0.1", "n1")]);
    assert_eq!(names(state.apply(Update::Slice(Change::Applied(early)), "n1")), [""; 0]);
    assert_eq!(names(state.apply(Update::Service(Change::Applied(service())), "n1")), ["svc"]);
    let routes = topology::routes(&state, "n1", Scope::All, &id("svc"));
    assert_eq!(routes[0].endpoints.len(), 1);
    assert_eq!(names(state.apply(Update::Service(Change::Deleted(id("svc"))), "n1")), ["svc"]);
    assert_eq!(names(state.apply(Update::Service(Change::Applied(service())), "n1")), ["svc"]);
    assert_eq!(topology::routes(&state, "n1", Scope::All, &id("svc")), routes);
}

//! State does not depend on the order of updates, and every change of routes is reported.

use std::collections::BTreeMap;

use proptest::test_runner::{Config, TestRunner};
use topo_lb_core::cluster::{
    Change, ClusterObject, Endpoint, Service, ServiceId, Slice, SliceId, State, Update,
};
use topo_lb_core::topology::{self, Route, Scope};

use crate::made::{Asking as _, Cluster, Otherwise, Z, endpoint, id, keyed, node, service, slice};
use crate::random;

fn all_routes(state: &State, this_node: &str) -> BTreeMap<ServiceId, Vec<Route>> {
    let routes = |id: &ServiceId| topology::routes(state, this_node, Scope::All, None, id);
    state.services().map(|id| (id.clone(), routes(id))).collect()
}

/// The last version of every object.
#[derive(Default)]
struct Last(Cluster);

impl Last {
    fn take(&mut self, update: Update) {
        match update {
            Update::Service(change) => take(&mut self.0.services, change),
            Update::Slice(change) => take(&mut self.0.slices, change),
            Update::Node(change) => take(&mut self.0.nodes, change),
            Update::Namespace(change) => take(&mut self.0.namespaces, change),
            Update::TopologyPolicy(change) => take(&mut self.0.policies, change),
            Update::ClusterTopologyPolicy(change) => take(&mut self.0.cluster_policies, change),
            // These change no object.
            Update::LocalAddresses(_)
            | Update::KnownNodes(_)
            | Update::ZoneRegion(_)
            | Update::Time(_)
            | Update::Ejections(_)
            | Update::ServiceEjections(..)
            | Update::Island(_) => {}
        }
    }
}

fn take<T: ClusterObject>(all: &mut Vec<T>, change: Change<T>) {
    match change {
        Change::Applied(new) => {
            all.retain(|old| old.id() != new.id());
            all.push(new);
        }
        Change::Deleted(id) => all.retain(|old| *old.id() != id),
        Change::Listed(new, unread) => {
            all.retain(|old| unread.contains(old.id()));
            all.retain(|old| new.iter().all(|new| new.id() != old.id()));
            all.extend(new);
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
        cluster.services.push(Service { id: id(name), ..keyed(Z) });
        let slice = slice(name, vec![endpoint("10.0.0.1", on)]);
        cluster.slices.push(Slice { service: Some(id(name)), ..slice });
    }
    cluster.services.push(service());
    cluster.state("n1")
}

/// The names of the Services that an update touches on n1.
fn touched(state: &mut State, update: Update) -> Vec<String> {
    state.apply(update, "n1").services.iter().map(|id| id.name.to_string()).collect()
}

/// Applies updates in order; each must touch these Services.
#[track_caller]
fn each_touches<const N: usize>(updates: [(Update, &[&str]); N]) {
    let mut state = three();
    for (update, services) in updates {
        assert_eq!(touched(&mut state, update.clone()), services, "{update:?}");
    }
}

/// A slice `two` of this Service with one endpoint.
fn slice_of(service: Option<&str>, endpoint: Endpoint) -> Update {
    let slice = Slice { service: service.map(id), ..slice("two", vec![endpoint]) };
    Update::Slice(Change::Applied(slice))
}

#[test]
fn a_slice_touches_its_service_and_the_one_that_it_had() {
    let deleted = || {
        Update::Slice(Change::Deleted(SliceId { namespace: "default".into(), name: "two".into() }))
    };
    let new = || endpoint("10.0.0.2", "n2");
    each_touches([
        (slice_of(Some("two"), new()), &["two"]),
        (slice_of(Some("two"), new().draining()), &["two"]),
        (deleted(), &["two"]),
        (deleted(), &[]),
    ]);
    each_touches([
        (slice_of(Some("one"), endpoint("10.0.0.1", "n2")), &["one", "two"]),
        (slice_of(None, endpoint("10.0.0.1", "n2")), &["one"]),
    ]);
}

#[test]
fn this_node_touches_every_service_and_another_those_with_endpoints_there() {
    let labelled = |name, labels: &[_]| Update::Node(Change::Applied(node(name, labels)));
    let deleted = |name: &str| Update::Node(Change::Deleted(name.into()));
    let all = vec![node("n1", &[(Z, "a")]), node("n2", &[])];
    each_touches([
        (labelled("n2", &[(Z, "a")]), &["two"]),
        (deleted("n2"), &["two"]),
        (labelled("n3", &[(Z, "a")]), &[]),
        (Update::Node(Change::Listed(all, vec![])), &["two"]),
        (labelled("n1", &[]), &["one", "svc", "two"]),
        (deleted("n1"), &["one", "svc", "two"]),
        (deleted("n1"), &[]),
    ]);
}

#[test]
fn a_listing_touches_what_differs_and_what_is_gone() {
    let mut state = three();
    let all = vec![Service { id: id("one"), ..keyed(Z) }, Service { id: id("new"), ..service() }];
    assert_eq!(
        touched(&mut state, Update::Service(Change::Listed(all, vec![]))),
        ["new", "svc", "two"]
    );
    assert_eq!(touched(&mut state, Update::Slice(Change::Listed(vec![], vec![]))), ["one"]);
    assert!(state.service(&id("two")).is_none());
}

#[test]
fn what_a_listing_names_but_could_not_read_stays_as_it_was() {
    let mut state = three();
    let before = state.clone();
    let services = Update::Service(Change::Listed(vec![], ["one", "two", "svc"].map(id).to_vec()));
    assert_eq!(touched(&mut state, services), [""; 0]);
    let slices = before.services().flat_map(|id| before.slices(id)).map(|(id, _)| id.clone());
    assert_eq!(
        touched(&mut state, Update::Slice(Change::Listed(vec![], slices.collect()))),
        [""; 0]
    );
    let nodes = before.nodes().map(|(name, _)| name.into()).collect();
    assert_eq!(touched(&mut state, Update::Node(Change::Listed(vec![], nodes))), [""; 0]);
    assert!(state == before);
    // An unknown object stays unknown.
    let unknown = Update::Service(Change::Listed(vec![], vec![id("one"), id("unknown")]));
    assert_eq!(touched(&mut state, unknown), ["svc", "two"]);
    assert!(state.service(&id("unknown")).is_none());
}

#[test]
fn slices_that_come_before_their_service_wait_for_it() {
    let mut state = State::default();
    let early = slice("svc-1", vec![endpoint("10.0.0.1", "n1")]);
    assert_eq!(touched(&mut state, Update::Slice(Change::Applied(early))), [""; 0]);
    assert_eq!(touched(&mut state, Update::Service(Change::Applied(service()))), ["svc"]);
    let routes = topology::routes(&state, "n1", Scope::All, None, &id("svc"));
    assert_eq!(routes[0].endpoints.len(), 1);
    assert_eq!(touched(&mut state, Update::Service(Change::Deleted(id("svc")))), ["svc"]);
    assert_eq!(touched(&mut state, Update::Service(Change::Applied(service()))), ["svc"]);
    assert_eq!(topology::routes(&state, "n1", Scope::All, None, &id("svc")), routes);
}

/// A Service that has an endpoint in common with one that steers decides with it.
#[test]
fn what_a_service_shares_with_one_that_steers_touches_both() {
    use topo_lb_core::cluster::Namespace;

    let steers = |name: &str| Service {
        id: id(name),
        ..keyed(&format!("{Z},*")).asking(|policy| policy.direct = Some("steer".into()))
    };
    let at = |name: &str, endpoints| Slice { service: Some(id(name)), ..slice(name, endpoints) };
    let apply = |slice| Update::Slice(Change::Applied(slice));
    let two = || endpoint("10.0.0.2", "n2");
    let before = (Update::Service(Change::Applied(steers("one"))), &["one"][..]);
    each_touches([
        before.clone(),
        // The endpoint of `one` on n1, and then another one.
        (apply(at("two", vec![endpoint("10.0.0.1", "n1")])), &["two"]),
        (apply(at("two", vec![endpoint("10.0.0.1", "n1"), two()])), &["one", "two"]),
        (apply(at("two", vec![endpoint("10.0.0.1", "n1").unready(), two()])), &["two"]),
        (apply(at("two", vec![two()])), &["one", "two"]),
        (apply(at("two", vec![two().unready()])), &["two"]),
        (apply(at("two", vec![endpoint("10.0.0.1", "n2")])), &["one", "two"]),
        (Update::Service(Change::Deleted(id("two"))), &["one", "two"]),
        (Update::Service(Change::Applied(Service { id: id("two"), ..keyed(Z) })), &["one", "two"]),
        (Update::Service(Change::Applied(Service { id: id("two"), ..service() })), &["two"]),
        (Update::Service(Change::Applied(Service { id: id("one"), ..keyed(Z) })), &["one"]),
        (apply(at("two", vec![two()])), &["two"]),
    ]);
    // Its Namespace says so, for all.
    let policy = steers("one").policy;
    let name = id("one").namespace;
    let namespace = Namespace { name, policy, ..Namespace::default() };
    each_touches([
        (Update::Namespace(Change::Applied(namespace)), &["one", "svc", "two"]),
        (apply(at("two", vec![two()])), &["one", "two"]),
    ]);
}

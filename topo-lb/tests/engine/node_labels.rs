//! Which decisions read labels of other Nodes. Those that claim to read none are the same without
//! these Nodes.

use std::cell::Cell;

use proptest::test_runner::{Config, TestRunner};
use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::service::Skipped;
use topo_lb_core::cluster::{Endpoint, Service, State};
use topo_lb_core::topology::{self, Route, Scope};

use crate::made::{Cluster, H, Otherwise, R, Z, asking, endpoint, id, keyed, node, openyurt};
use crate::random;

/// The routes without localities, which only metrics use and which may be less exact.
fn decided(state: &State, this_node: &str, scope: Scope) -> Vec<Route> {
    let mut routes = topology::routes(state, this_node, scope, None, &id("svc"));
    for route in &mut routes {
        let parts = route.parts.iter_mut().flat_map(|part| &mut part.endpoints);
        for one in route.endpoints.iter_mut().chain(&mut route.wider).chain(parts) {
            one.locality = Locality::Elsewhere;
        }
    }
    routes
}

#[test]
fn what_reads_no_other_nodes_is_decided_the_same_without_them() {
    let (needed, not_needed) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 10_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&random::tapes(250), |tape| {
        let (cluster, this_node) = random::cluster(&tape);
        let mut alone: Cluster = cluster.clone();
        alone.nodes.retain(|node| &*node.name == this_node);
        let (all, alone) = (cluster.state(this_node), alone.state(this_node));
        for scope in [Scope::All, Scope::OptIn] {
            let reads = |state| topology::reads_other_nodes(state, this_node, scope, &id("svc"));
            let routes = |state| decided(state, this_node, scope);
            let is_same = routes(&alone) == routes(&all);
            assert_eq!(reads(&alone), reads(&all), "which Nodes are known does not matter");
            match reads(&alone) {
                None => {
                    assert!(is_same, "{:?}", routes(&all));
                    not_needed.set(not_needed.get() + usize::from(!routes(&all).is_empty()));
                }
                Some(_) => needed.set(needed.get() + usize::from(!is_same)),
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    // Both kinds of clusters occur.
    let (needed, not_needed) = (needed.get(), not_needed.get());
    assert!(needed > 100 && not_needed > 100, "{needed} read other Nodes, {not_needed} do not");
}

/// The label that node `here` reads from other Nodes for this Service, with one endpoint.
fn read(
    own: &[(&str, &str)],
    service: Service,
    endpoint: Endpoint,
    scope: Scope,
) -> Option<String> {
    let state = Cluster::of(vec![node("here", own)], service, vec![endpoint]).state("here");
    topology::reads_other_nodes(&state, "here", scope, &id("svc")).map(str::to_owned)
}

/// Slices may say of an endpoint on this node that it is elsewhere: then it is of a wider tier.
#[test]
fn nodes_are_counted_also_where_only_endpoints_of_this_node_are_left() {
    for (spill, wanted) in [(None, None), (Some("auto"), Some(H))] {
        let mut service = asking(|policy| {
            policy.topology_keys = Some(format!("{H},{R}").into());
            policy.spill = spill.map(Into::into);
        });
        service.internal_local = true;
        let read = read(OWN, service, endpoint("10.244.0.2", "here"), Scope::All);
        assert_eq!(read.as_deref(), wanted, "{spill:?}");
    }
}

const POOL: &str = "apps.openyurt.io/nodepool";
const OWN: &[(&str, &str)] = &[(H, "here"), (Z, "a"), (R, "r"), ("rack", "1"), (POOL, "pool")];

/// An endpoint on `there`, with these labels in its slice.
fn there(carried: &[&str]) -> Endpoint {
    let labels: Vec<_> = carried.iter().map(|&key| (key, "x")).collect();
    endpoint("10.1.1.1", "there").carrying(&labels)
}

#[test]
fn a_label_that_the_slice_carries_is_read_from_no_node() {
    for (keys, carried, read_from_nodes) in [
        (&*format!("{H},{Z},*"), &[Z][..], None),
        (Z, &[], Some(Z)),
        (R, &[Z], Some(R)),
        // As in Kubernetes 1.20.
        (R, &[H, Z, R], None),
        ("rack,*", &[H, Z, R], Some("rack")),
        // This node lacks the label, so no endpoint matches.
        ("room,*", &[], None),
        ("*", &[], None),
    ] {
        let read = read(OWN, keyed(keys), there(carried), Scope::All);
        assert_eq!(read.as_deref(), read_from_nodes, "{keys} {carried:?}");
    }
}

#[test]
fn other_nodes_are_read_only_where_their_labels_decide() {
    let local = Service { internal_local: true, ..keyed("rack") };
    let skipped = Service { skipped: Some(Skipped::OtherProxy), ..keyed("rack") };
    let hints = asking(|policy| policy.hints_asked = true);
    let pool = || openyurt("openyurt.io/nodepool");
    for (what, own, service, endpoint, scope, wanted) in [
        (
            "an endpoint of this node",
            OWN,
            keyed("rack"),
            endpoint("10.1.1.1", "here"),
            Scope::All,
            None,
        ),
        ("an endpoint of no node", OWN, keyed("rack"), endpoint("10.1.1.1", ""), Scope::All, None),
        ("only endpoints of this node count", OWN, local, there(&[]), Scope::All, None),
        ("host names are the names of Nodes", OWN, keyed(H), there(&[]), Scope::All, None),
        ("or not", &[(H, "here.example.com")], keyed(H), there(&[]), Scope::All, Some(H)),
        ("pools are of Nodes", OWN, pool(), there(&[Z]), Scope::All, Some(POOL)),
        ("a node without a pool uses its own", &[(Z, "a")], pool(), there(&[Z]), Scope::All, None),
        ("OpenYurt's host name", OWN, openyurt(H), there(&[Z]), Scope::All, None),
        ("hints are in slices", OWN, hints, there(&[Z]), Scope::All, None),
        ("no valid policy in scope", OWN, keyed("rack,,"), there(&[]), Scope::OptIn, None),
        ("not translated", OWN, skipped, there(&[]), Scope::All, None),
    ] {
        assert_eq!(read(own, service, endpoint, scope).as_deref(), wanted, "{what}");
    }
}

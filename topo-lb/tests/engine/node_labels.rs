//! A decision that claims to read no labels of other Nodes is the same without these Nodes.

use std::cell::Cell;

use proptest::test_runner::{Config, TestRunner};
use topo_lb::cluster::State;
use topo_lb::topology::{self, Route, Scope};
use topo_lb_common::backend::Locality;

use crate::made::{Cluster, id};
use crate::random;

/// The routes without localities, which only metrics use and which may be less exact.
fn decided(state: &State, this_node: &str, scope: Scope) -> Vec<Route> {
    let mut routes = topology::routes(state, this_node, scope, &id("svc"));
    for one in
        routes.iter_mut().flat_map(|route| route.endpoints.iter_mut().chain(&mut route.wider))
    {
        one.locality = Locality::Elsewhere;
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

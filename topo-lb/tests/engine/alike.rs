//! Nodes that a Service treats alike are one group. That their decisions are the same is shown in `lint`
//! and `what_if`.

use topo_lb_core::cluster::Service;
use topo_lb_core::topology::{self, NodesByLabel, Scope};

use crate::made::{Cluster, H, Z, endpoint, id, keyed, node, openyurt, service};

/// The sizes of the groups of 90 nodes in three zones, with endpoints on two nodes of the first zone.
fn sizes(service: Service, also: Option<&str>) -> Vec<usize> {
    let nodes = (0..90).map(|at| {
        let (name, zone) = (format!("n{at:02}"), format!("z{}", at % 3));
        node(&name, &[(H, &name), (Z, &zone)])
    });
    let endpoints = vec![endpoint("10.0.0.1", "n00"), endpoint("10.0.0.2", "n03")];
    let state = Cluster::of(nodes.collect(), service, endpoints).state("");
    let decisions = topology::decide(&state, "", Scope::All, &id("svc"));
    let groups = NodesByLabel::of(&state).alike(
        state.service(&id("svc")).unwrap(),
        &decisions,
        also.as_slice(),
    );
    let mut sizes: Vec<_> = groups.iter().map(Vec::len).collect();
    sizes.sort_unstable();
    sizes
}

#[test]
fn only_nodes_with_an_endpoint_differ_by_their_host_name() {
    assert_eq!(sizes(keyed(H), None), [1, 1, 88]);
}

#[test]
fn zones_without_an_endpoint_are_alike() {
    assert_eq!(sizes(keyed(&format!("{H},{Z}")), None), [1, 1, 28, 60]);
}

#[test]
fn the_label_of_the_caller_splits_groups() {
    assert_eq!(sizes(keyed(H), Some(Z)), [1, 1, 28, 30, 30]);
}

#[test]
fn a_service_without_a_policy_and_pools_that_nobody_is_in_split_nothing() {
    assert_eq!(sizes(service(), None), [1, 1, 88]);
    assert_eq!(sizes(openyurt("openyurt.io/nodepool"), None), [1, 1, 88]);
}

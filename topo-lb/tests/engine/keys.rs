//! Policy *keys* against the table of Kubernetes 1.20, and cases beyond it.

use topo_lb_core::cluster::{Endpoint, Node, Service};

use crate::made::{Cluster, H, Otherwise, R, Z, asking, endpoint, keyed, node, with_field};

/// A node of `TestFilterTopologyEndpoint`, with all three labels.
fn labelled(name: &str, zone: &str) -> Node {
    node(name, &[(H, name), (Z, zone), (R, "cd")])
}

/// `pkg/proxy/topology_test.go` of Kubernetes 1.20, `TestFilterTopologyEndpoint`, case by case: the
/// zones of `testNode1`, `testNode2`, …; how many of these have two endpoints each; the node to
/// decide for; its keys; the nodes with chosen endpoints.
#[test]
fn keys_decide_as_kubernetes_1_20_did() {
    type Case = (&'static str, &'static [u8], u8, u8, &'static [&'static str], &'static [u8]);
    let cases: [Case; 11] = [
        ("no topology key and endpoints", &[1], 0, 1, &[], &[]),
        ("no topology key but have endpoints", &[1, 1], 2, 1, &[], &[1, 2]),
        ("one topology key with one node matched", &[1, 1], 2, 1, &[H], &[1]),
        ("one topology key without node matched", &[1, 1, 1], 2, 3, &[H], &[]),
        ("one topology key with multiple nodes matched", &[1, 1, 2, 2], 4, 2, &[Z], &[1, 2]),
        // The original intends two keys here, but has one.
        ("early match in multiple topology keys", &[1, 1, 2, 2], 4, 2, &[H, Z], &[2]),
        ("later match in multiple topology keys", &[1, 1, 2, 2, 2], 4, 5, &[H, Z], &[3, 4]),
        ("multiple topology keys without node matched", &[1, 1, 2, 2, 3], 4, 5, &[H, Z], &[]),
        (
            "multiple topology keys matched node when 'Any' key ignored",
            &[1, 1],
            2,
            1,
            &[H, "*"],
            &[1],
        ),
        ("two topology keys matched node with 'Any' key", &[1, 1, 1], 2, 3, &[H, "*"], &[1, 2]),
        (
            "multiple topology keys matched node with 'Any' key",
            &[1, 1, 2, 2, 3],
            4,
            5,
            &[H, Z, "*"],
            &[1, 2, 3, 4],
        ),
    ];
    let name = |number| format!("testNode{number}");
    let two = |number| [1, 2].map(|which| format!("1.1.{number}.{which}"));
    for (case, zones, with_endpoints, this_node, keys, expected) in cases {
        let zones = (1..).zip(zones);
        let nodes: Vec<_> =
            zones.map(|(at, zone)| labelled(&name(at), &format!("9000{zone}"))).collect();
        let endpoints =
            (1..=with_endpoints).flat_map(|of| two(of).map(|at| endpoint(&at, &name(of))));
        let endpoints: Vec<_> = endpoints.collect();
        let expected: Vec<_> = expected.iter().flat_map(|&of| two(of)).collect();
        // The annotation and the field give the same policy.
        let annotation = (!keys.is_empty()).then(|| keys.join(" ,\t").into());
        let by_annotation = asking(|policy| policy.topology_keys = annotation);
        for service in [with_field(keys), by_annotation] {
            let cluster = Cluster::of(nodes.clone(), service, endpoints.clone());
            assert_eq!(cluster.chosen(&name(this_node)), expected, "{case}");
        }
    }
}

/// Checks which endpoints the Service has on node `here`, and by which key.
#[track_caller]
fn chooses(nodes: &[Node], keys: &str, endpoints: &[Endpoint], chosen: &[&str], tier: Option<u8>) {
    let cluster = Cluster::of(nodes.to_vec(), keyed(keys), endpoints.to_vec());
    assert_eq!(cluster.chosen("here"), chosen, "{keys}");
    assert_eq!(cluster.routes("here")[0].tier, tier, "{keys}");
}

#[test]
fn a_node_without_labels_or_unknown_has_only_the_star() {
    for nodes in [vec![node("here", &[])], vec![]] {
        let nodes = [nodes, vec![labelled("far", "z")]].concat();
        // One endpoint is on this node: without the label on the node, the key cannot match it.
        let endpoints = [endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")];
        chooses(&nodes, H, &endpoints, &[], None);
        chooses(&nodes, &format!("{H}, {Z}, *"), &endpoints, &["10.0.0.1", "10.0.0.2"], Some(2));
    }
}

#[test]
fn a_key_that_the_node_or_the_endpoint_lacks_does_not_match() {
    let nodes = [node("here", &[(Z, "a")]), node("there", &[("rack", "r"), (Z, "a")])];
    let there = [endpoint("10.0.0.1", "there")];
    chooses(&nodes, &format!("rack,{Z}"), &there, &["10.0.0.1"], Some(1));
    let nodes = [node("here", &[("rack", "r")]), node("bare", &[])];
    let endpoints = ["bare", "", "unknown"].map(|node| endpoint("10.0.0.1", node));
    for endpoint in endpoints {
        chooses(&nodes, "rack,*", &[endpoint], &["10.0.0.1"], Some(1));
    }
}

#[test]
fn an_endpoint_on_an_unknown_node_has_that_nodes_name_as_hostname() {
    let nodes = [node("here", &[(H, "renamed")])];
    let on = [("10.0.0.1", "renamed"), ("10.0.0.2", "here"), ("10.0.0.3", "unknown")];
    let endpoints = on.map(|(address, node)| endpoint(address, node));
    chooses(&nodes, H, &endpoints, &["10.0.0.1", "10.0.0.2"], Some(0));
    // A known node without the label has no host name.
    let nodes = [node("here", &[(H, "bare")]), node("bare", &[])];
    chooses(&nodes, H, &[endpoint("10.0.0.1", "bare")], &[], None);
}

#[test]
fn any_node_label_is_a_key_even_without_a_value() {
    let nodes = [
        node("here", &[("example.com/site", "north"), ("room", "1"), ("edge", "")]),
        node("n2", &[("example.com/site", "north"), ("room", "2")]),
        node("n3", &[("example.com/site", "south"), ("room", "1"), ("edge", "")]),
    ];
    let endpoints = [endpoint("10.0.0.2", "n2"), endpoint("10.0.0.3", "n3")];
    for (key, chosen) in
        [("example.com/site", "10.0.0.2"), ("room", "10.0.0.3"), ("edge", "10.0.0.3")]
    {
        chooses(&nodes, key, &endpoints, &[chosen], Some(0));
    }
}

#[test]
fn a_nearest_tier_without_a_ready_endpoint_is_an_empty_tier() {
    let nodes = [labelled("here", "a"), labelled("n2", "a"), labelled("n3", "b")];
    let keys = format!("{H},{Z},*");
    for worse in [Endpoint::unready as fn(_) -> _, Otherwise::draining, Otherwise::gone] {
        let [near, mid] = [endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "n2")];
        let far = endpoint("10.0.0.3", "n3");
        let endpoints = [worse(near.clone()), mid.clone(), far.clone()];
        chooses(&nodes, &keys, &endpoints, &["10.0.0.2"], Some(1));
        chooses(&nodes, &keys, &[worse(near), worse(mid), far], &["10.0.0.3"], Some(2));
    }
}

#[test]
fn what_the_slice_says_of_an_endpoint_comes_before_its_node() {
    let nodes = [labelled("here", "a"), labelled("n2", "b")];
    let endpoints = [
        endpoint("10.0.0.1", "n2").carrying(&[(Z, "a")]),
        endpoint("10.0.0.2", "here").carrying(&[(Z, "b")]),
        endpoint("10.0.0.3", "").carrying(&[(Z, "a")]),
    ];
    chooses(&nodes, Z, &endpoints, &["10.0.0.1", "10.0.0.3"], Some(0));
}

#[test]
fn internal_traffic_policy_local_comes_first_and_keys_choose_of_what_is_left() {
    let local = Service { internal_local: true, ..keyed(&format!("{H},*")) };
    let nodes = vec![labelled("n1", "a"), labelled("n2", "a")];
    let [here, there] = [endpoint("10.0.0.1", "n1").draining(), endpoint("10.0.0.2", "n2")];
    let cluster = Cluster::of(nodes.clone(), local.clone(), vec![here, there.clone()]);
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1"], "it drains here while others are ready there");
    assert_eq!(Cluster::of(nodes, local, vec![there]).chosen("n1"), [""; 0]);
}

//! Policy *keys* against the table of Kubernetes 1.20, and cases beyond it.

use std::sync::Arc;

use topo_lb::cluster::{Endpoint, Node};

use crate::made::{Cluster, H, Otherwise, R, Z, endpoint, keyed, node, service};

const HOSTNAME_ZONE_ANY: &str = "kubernetes.io/hostname, topology.kubernetes.io/zone, *";

/// A node of `TestFilterTopologyEndpoint`, with all three labels.
fn labelled(name: &str, zone: &str) -> Node {
    node(name, &[(H, name), (Z, zone), (R, "cd")])
}

/// Two endpoints on each of the first `count` nodes.
fn two_each(count: usize) -> Vec<Endpoint> {
    (1..=count)
        .flat_map(|of| [1, 2].map(|which| (of, which)))
        .map(|(of, which)| endpoint(&format!("1.1.{of}.{which}"), &format!("testNode{of}")))
        .collect()
}

/// `pkg/proxy/topology_test.go` of Kubernetes 1.20, `TestFilterTopologyEndpoint`, case by case.
#[test]
fn keys_decide_as_kubernetes_1_20_did() {
    struct Case {
        name: &'static str,
        zones: &'static [&'static str],
        endpoints_on: usize,
        this_node: &'static str,
        keys: &'static [&'static str],
        expected_on: &'static [usize],
    }
    let cases = [
        Case {
            name: "no topology key and endpoints",
            zones: &["90001"],
            endpoints_on: 0,
            this_node: "testNode1",
            keys: &[],
            expected_on: &[],
        },
        Case {
            name: "no topology key but have endpoints",
            zones: &["90001", "90001"],
            endpoints_on: 2,
            this_node: "testNode1",
            keys: &[],
            expected_on: &[1, 2],
        },
        Case {
            name: "one topology key with one node matched",
            zones: &["90001", "90001"],
            endpoints_on: 2,
            this_node: "testNode1",
            keys: &[H],
            expected_on: &[1],
        },
        Case {
            name: "one topology key without node matched",
            zones: &["90001", "90001", "90001"],
            endpoints_on: 2,
            this_node: "testNode3",
            keys: &[H],
            expected_on: &[],
        },
        Case {
            name: "one topology key with multiple nodes matched",
            zones: &["90001", "90001", "90002", "90002"],
            endpoints_on: 4,
            this_node: "testNode2",
            keys: &[Z],
            expected_on: &[1, 2],
        },
        Case {
            // The original intends two keys here, but has one.
            name: "early match in multiple topology keys",
            zones: &["90001", "90001", "90002", "90002"],
            endpoints_on: 4,
            this_node: "testNode2",
            keys: &[H, Z],
            expected_on: &[2],
        },
        Case {
            name: "later match in multiple topology keys",
            zones: &["90001", "90001", "90002", "90002", "90002"],
            endpoints_on: 4,
            this_node: "testNode5",
            keys: &[H, Z],
            expected_on: &[3, 4],
        },
        Case {
            name: "multiple topology keys without node matched",
            zones: &["90001", "90001", "90002", "90002", "90003"],
            endpoints_on: 4,
            this_node: "testNode5",
            keys: &[H, Z],
            expected_on: &[],
        },
        Case {
            name: "multiple topology keys matched node when 'Any' key ignored",
            zones: &["90001", "90001"],
            endpoints_on: 2,
            this_node: "testNode1",
            keys: &[H, "*"],
            expected_on: &[1],
        },
        Case {
            name: "two topology keys matched node with 'Any' key",
            zones: &["90001", "90001", "90001"],
            endpoints_on: 2,
            this_node: "testNode3",
            keys: &[H, "*"],
            expected_on: &[1, 2],
        },
        Case {
            name: "multiple topology keys matched node with 'Any' key",
            zones: &["90001", "90001", "90002", "90002", "90003"],
            endpoints_on: 4,
            this_node: "testNode5",
            keys: &[H, Z, "*"],
            expected_on: &[1, 2, 3, 4],
        },
    ];
    for case in cases {
        let nodes = case.zones.iter().enumerate();
        let nodes: Vec<_> =
            nodes.map(|(at, zone)| labelled(&format!("testNode{}", at + 1), zone)).collect();
        let expected: Vec<_> = case
            .expected_on
            .iter()
            .flat_map(|of| [format!("1.1.{of}.1"), format!("1.1.{of}.2")])
            .collect();
        // The annotation and the field give the same policy.
        let mut by_field = service();
        Arc::make_mut(&mut by_field.policy).spec_topology_keys =
            case.keys.iter().map(|&key| key.into()).collect();
        let mut by_annotation = service();
        Arc::make_mut(&mut by_annotation.policy).topology_keys =
            (!case.keys.is_empty()).then(|| case.keys.join(" ,\t").into());
        for service in [by_field, by_annotation] {
            let cluster = Cluster::of(nodes.clone(), service, two_each(case.endpoints_on));
            assert_eq!(cluster.chosen(case.this_node), expected, "{}", case.name);
        }
    }
}

#[test]
fn a_node_without_labels_or_unknown_has_only_the_star() {
    for nodes in [vec![node("here", &[])], vec![]] {
        let nodes = [nodes, vec![labelled("far", "z")]].concat();
        // One endpoint is on this node: without the label on the node, the key cannot match it.
        let endpoints = || vec![endpoint("10.0.0.1", "here"), endpoint("10.0.0.2", "far")];
        let strict = Cluster::of(nodes.clone(), keyed(H), endpoints());
        assert_eq!(strict.chosen("here"), [""; 0]);
        let soft = Cluster::of(nodes, keyed(HOSTNAME_ZONE_ANY), endpoints());
        assert_eq!(soft.chosen("here"), ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(soft.routes("here")[0].tier, Some(2));
    }
}

#[test]
fn a_key_that_this_node_lacks_is_passed_over() {
    let nodes = vec![node("here", &[(Z, "a")]), node("there", &[("rack", "r"), (Z, "a")])];
    let cluster =
        Cluster::of(nodes, keyed(&format!("rack,{Z}")), vec![endpoint("10.0.0.1", "there")]);
    assert_eq!(cluster.chosen("here"), ["10.0.0.1"]);
    assert_eq!(cluster.routes("here")[0].tier, Some(1));
}

#[test]
fn an_endpoint_that_lacks_the_label_does_not_match() {
    let nodes = vec![node("here", &[("rack", "r")]), node("bare", &[])];
    let cluster = Cluster::of(
        nodes,
        keyed("rack,*"),
        vec![
            endpoint("10.0.0.1", "bare"),
            endpoint("10.0.0.2", ""),
            endpoint("10.0.0.3", "unknown"),
        ],
    );
    assert_eq!(cluster.chosen("here"), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(cluster.routes("here")[0].tier, Some(1), "only the star has them");
}

#[test]
fn an_endpoint_on_an_unknown_node_has_that_nodes_name_as_hostname() {
    let nodes = vec![node("here", &[(H, "renamed")])];
    let on = [("10.0.0.1", "renamed"), ("10.0.0.2", "here"), ("10.0.0.3", "unknown")];
    let endpoints = on.map(|(address, node)| endpoint(address, node)).into();
    let cluster = Cluster::of(nodes, keyed(H), endpoints);
    assert_eq!(cluster.chosen("here"), ["10.0.0.1", "10.0.0.2"]);
    let nodes = vec![node("here", &[(H, "bare")]), node("bare", &[])];
    let cluster = Cluster::of(nodes, keyed(H), vec![endpoint("10.0.0.1", "bare")]);
    assert_eq!(cluster.chosen("here"), [""; 0], "a known node without the label has no hostname");
}

#[test]
fn any_node_label_is_a_key() {
    let nodes = vec![
        node("n1", &[("example.com/site", "north"), ("room", "1")]),
        node("n2", &[("example.com/site", "north"), ("room", "2")]),
        node("n3", &[("example.com/site", "south"), ("room", "1")]),
    ];
    let endpoints = vec![endpoint("10.0.0.2", "n2"), endpoint("10.0.0.3", "n3")];
    let by_site = Cluster::of(nodes.clone(), keyed("example.com/site"), endpoints.clone());
    assert_eq!(by_site.chosen("n1"), ["10.0.0.2"]);
    let by_room = Cluster::of(nodes, keyed("room"), endpoints);
    assert_eq!(by_room.chosen("n1"), ["10.0.0.3"]);
}

#[test]
fn two_labels_without_a_value_are_the_same_value() {
    let nodes = vec![node("n1", &[("edge", "")]), node("n2", &[("edge", "")])];
    let cluster = Cluster::of(nodes, keyed("edge"), vec![endpoint("10.0.0.2", "n2")]);
    assert_eq!(cluster.chosen("n1"), ["10.0.0.2"]);
}

#[test]
fn a_nearest_tier_without_a_ready_endpoint_is_an_empty_tier() {
    let nodes = vec![labelled("n1", "a"), labelled("n2", "a"), labelled("n3", "b")];
    let keys = format!("{H},{Z},*");
    for worse in [Endpoint::unready as fn(_) -> _, Otherwise::draining, Otherwise::gone] {
        let (near, mid) = (endpoint("10.0.0.1", "n1"), endpoint("10.0.0.2", "n2"));
        let far = endpoint("10.0.0.3", "n3");
        let cluster = Cluster::of(
            nodes.clone(),
            keyed(&keys),
            vec![worse(near.clone()), mid.clone(), far.clone()],
        );
        assert_eq!(cluster.chosen("n1"), ["10.0.0.2"]);
        let cluster = Cluster::of(nodes.clone(), keyed(&keys), vec![worse(near), worse(mid), far]);
        assert_eq!(cluster.chosen("n1"), ["10.0.0.3"]);
    }
}

#[test]
fn what_the_slice_says_of_an_endpoint_comes_before_its_node() {
    let nodes = vec![labelled("n1", "a"), labelled("n2", "b")];
    let cluster = Cluster::of(
        nodes,
        keyed(Z),
        vec![
            endpoint("10.0.0.1", "n2").carrying(&[(Z, "a")]),
            endpoint("10.0.0.2", "n1").carrying(&[(Z, "b")]),
            endpoint("10.0.0.3", "").carrying(&[(Z, "a")]),
        ],
    );
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1", "10.0.0.3"]);
}

#[test]
fn internal_traffic_policy_local_comes_first_and_keys_choose_of_what_is_left() {
    let mut local = keyed(&format!("{H},*"));
    local.internal_local = true;
    let nodes = vec![labelled("n1", "a"), labelled("n2", "a")];
    let cluster = Cluster::of(
        nodes.clone(),
        local.clone(),
        vec![endpoint("10.0.0.1", "n1").draining(), endpoint("10.0.0.2", "n2")],
    );
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1"], "it drains here while others are ready there");
    let cluster = Cluster::of(nodes, local, vec![endpoint("10.0.0.2", "n2")]);
    assert_eq!(cluster.chosen("n1"), [""; 0]);
}

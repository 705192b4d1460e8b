//! Policy *OpenYurt* against the table of OpenYurt's filter, and cases beyond it.

use topo_lb_core::cluster::{Endpoint, Node};
use topo_lb_core::explain;
use topo_lb_core::topology::{PolicyKind, PolicySource, Scope, Verdict};

use crate::made::{Cluster, endpoint, labels, node, openyurt, service};

const POOL: &str = "apps.openyurt.io/nodepool";
const DESIRED: &str = "apps.openyurt.io/desired-nodepool";

/// `TestFilter`: node1 and node3 in pool hangzhou, node2 in shanghai.
fn nodes() -> Vec<Node> {
    vec![
        node("node1", &[(POOL, "hangzhou")]),
        node("node2", &[(POOL, "shanghai")]),
        node("node3", &[(POOL, "hangzhou")]),
    ]
}

/// `TestFilter`: 10.244.1.2–5 on node1, node2, node1, node3.
fn endpoints() -> Vec<Endpoint> {
    [
        ("10.244.1.2", "node1"),
        ("10.244.1.3", "node2"),
        ("10.244.1.4", "node1"),
        ("10.244.1.5", "node3"),
    ]
    .map(|(address, node)| endpoint(address, node))
    .into()
}

const VALUES: [&str; 3] = ["kubernetes.io/hostname", "openyurt.io/nodepool", "kubernetes.io/zone"];
const ALL: &[&str] = &["10.244.1.2", "10.244.1.3", "10.244.1.4", "10.244.1.5"];
const ON_NODE1: &[&str] = &["10.244.1.2", "10.244.1.4"];
const IN_HANGZHOU: &[&str] = &["10.244.1.2", "10.244.1.4", "10.244.1.5"];

/// `pkg/yurthub/filter/servicetopology/filter_test.go`, with the names of its cases.
#[test]
fn openyurts_values_keep_what_its_filter_keeps() {
    let in_no_pool = || {
        let mut nodes = nodes();
        nodes[0].labels = labels(&[]);
        nodes
    };
    let [host, pool, zone] = VALUES.map(openyurt);
    for (name, nodes, service, expected) in [
        ("topologyKeys is kubernetes.io/hostname", nodes(), host, ON_NODE1),
        ("topologyKeys is openyurt.io/nodepool", nodes(), pool.clone(), IN_HANGZHOU),
        ("topologyKeys is kubernetes.io/zone", nodes(), zone, IN_HANGZHOU),
        ("without openyurt.io/topologyKeys", nodes(), service(), ALL),
        ("currentNode is not in any nodepool", in_no_pool(), pool, ON_NODE1),
    ] {
        let cluster = Cluster::of(nodes, service, endpoints());
        assert_eq!(cluster.chosen("node1"), expected, "{name}");
    }
}

#[test]
fn explain_names_the_label_that_says_the_pool() {
    for (label, value) in [(POOL, "openyurt.io/nodepool"), (DESIRED, "kubernetes.io/zone")] {
        let nodes = vec![node("node1", &[(label, "hangzhou")])];
        let cluster = Cluster::of(nodes, openyurt(value), endpoints());
        let said = explain::report(&cluster.state("node1"), "node1", Scope::All, &[]);
        let said = &said.services[0].decision.reason;
        assert!(said.contains(&format!("share this node's {label}=hangzhou")), "{said}");
    }
}

#[test]
fn no_match_is_refused_there_is_no_fall_back() {
    let mut nodes = nodes();
    nodes.push(node("node4", &[(POOL, "beijing")]));
    for value in VALUES {
        let cluster = Cluster::of(nodes.clone(), openyurt(value), endpoints());
        assert_eq!(cluster.routes("node4")[0].verdict, Verdict::Refuse, "{value}");
        assert_eq!(cluster.chosen("unknown"), [""; 0], "{value}");
    }
}

#[test]
fn a_node_that_is_to_join_a_pool_is_in_it_already_unless_it_is_in_another() {
    let nodes = vec![
        node("node1", &[(DESIRED, "hangzhou")]),
        node("node2", &[(POOL, "shanghai"), (DESIRED, "hangzhou")]),
        node("node3", &[(POOL, ""), (DESIRED, "hangzhou")]),
    ];
    let cluster = Cluster::of(nodes, openyurt("openyurt.io/nodepool"), endpoints());
    assert_eq!(cluster.chosen("node1"), IN_HANGZHOU);
    assert_eq!(cluster.chosen("node2"), ["10.244.1.3"]);
}

#[test]
fn a_list_an_empty_or_an_unknown_value_constrains_nothing_and_says_why() {
    for (value, says) in [
        ("openyurt.io/nodepool,kubernetes.io/hostname", "is a list"),
        ("topology.kubernetes.io/zone", "does not know"),
        (" openyurt.io/nodepool", "does not know"),
        ("*", "does not know"),
        ("", "is empty"),
    ] {
        let cluster = Cluster::of(nodes(), openyurt(value), endpoints());
        assert_eq!(cluster.chosen("node1"), ALL, "{value:?}");
        cluster.decided("node1", |decision| {
            assert_eq!(decision.policy.source, PolicySource::None);
            assert_eq!(decision.policy.kind, PolicyKind::None);
            let error = decision.policy.ignored[0].to_string();
            assert!(error.contains(says) && error.contains("openyurt.io/topologyKeys"), "{error}");
        });
    }
}

#[test]
fn an_endpoint_without_a_node_is_dropped_and_one_on_an_unknown_node_is_in_no_pool() {
    let all = vec![endpoint("10.244.1.6", ""), endpoint("10.244.1.9", "unknown")];
    for value in VALUES {
        let cluster = Cluster::of(nodes(), openyurt(value), all.clone());
        assert_eq!(cluster.chosen("node1"), [""; 0], "{value}");
        // Not even if this node is in no pool.
        assert_eq!(cluster.chosen("nowhere"), [""; 0], "{value}");
        // This node is in no pool either.
        assert_eq!(cluster.chosen("unknown"), ["10.244.1.9"], "{value}");
    }
}

#[test]
fn the_pool_is_shown_under_the_key_that_was_written() {
    for key in ["openyurt.io/nodepool", "kubernetes.io/zone"] {
        let cluster = Cluster::of(nodes(), openyurt(key), endpoints());
        cluster.decided("node1", |decision| {
            assert_eq!(decision.policy.source, PolicySource::OpenYurt);
            assert_eq!(decision.policy.kind, PolicyKind::OpenYurt);
            assert_eq!(decision.policy.keys, [key]);
            assert_eq!(decision.leading().unwrap().tier(), Some(0));
        });
    }
}

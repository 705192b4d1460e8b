//! Policy *OpenYurt* against the table of OpenYurt's filter, and cases beyond it.

use topo_lb_core::cluster::{Endpoint, Node};
use topo_lb_core::explain;
use topo_lb_core::topology::{PolicyKind, PolicySource, Scope, Verdict};

use crate::made::{Cluster, H, Otherwise, Z, endpoint, keyed, labels, node, openyurt, service};

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

/// Nodes a, b and c, each in no pool or in one, with the zone that openyurt#2550 gives them: the pool's name.
/// A node in no pool has no zone.
fn with_pools_as_zones(pools: [Option<&str>; 3]) -> Vec<Node> {
    let all = ["a", "b", "c"].into_iter().zip(pools);
    all.map(|(name, pool)| {
        let of_pool: Vec<_> = pool.into_iter().flat_map(|pool| [(POOL, pool), (Z, pool)]).collect();
        node(name, &[&[(H, name)], &of_pool[..]].concat())
    })
    .collect()
}

/// An endpoint on each of these nodes. `in_slice`: with the zone that the EndpointSlice controller copies
/// from the Node.
fn on_each(nodes: &[Node], in_slice: bool) -> Vec<Endpoint> {
    let all = nodes.iter().enumerate().map(|(at, node)| {
        let one = endpoint(&format!("10.244.1.{at}"), &node.name);
        match node.labels.get(Z).filter(|_| in_slice) {
            Some(zone) => one.carrying(&[(Z, zone)]),
            None => one,
        }
    });
    all.collect()
}

/// Every way to put three nodes into no pool or one of two, with every set of endpoints that are ready.
fn every_cluster() -> Vec<(Vec<Node>, Vec<Endpoint>)> {
    const POOLS: [Option<&str>; 3] = [None, Some("hangzhou"), Some("shanghai")];
    let mut all = Vec::new();
    for way in 0..27 {
        let nodes = with_pools_as_zones([way / 9, way / 3 % 3, way % 3].map(|at| POOLS[at]));
        for ready in 0..8 {
            for in_slice in [false, true] {
                let endpoints = on_each(&nodes, in_slice).into_iter().enumerate();
                let endpoints = endpoints
                    .map(|(at, one)| if ready >> at & 1 == 1 { one } else { one.unready() });
                all.push((nodes.clone(), endpoints.collect()));
            }
        }
    }
    all
}

/// Both by their own rules: pools by OpenYurt's, zones by those of keys.
#[test]
fn where_zones_are_pools_the_annotation_and_the_key_of_the_zone_are_one_policy() {
    let chosen = |of: &(Vec<Node>, Vec<Endpoint>), service, this_node: &str| {
        Cluster::of(of.0.clone(), service, of.1.clone()).chosen(this_node)
    };
    for cluster in every_cluster() {
        for node in &cluster.0 {
            let by = |service| chosen(&cluster, service, &node.name);
            let pool = by(openyurt("openyurt.io/nodepool"));
            let said = format!("on {} of {cluster:?}", node.name);
            assert_eq!(
                by(keyed("topology.kubernetes.io/zone, kubernetes.io/hostname")),
                pool,
                "{said}"
            );
            assert_eq!(
                by(keyed("apps.openyurt.io/nodepool, kubernetes.io/hostname")),
                pool,
                "{said}"
            );
            // The key alone differs in one case: a node in no pool uses no endpoint, not even its own.
            match node.labels.get(Z) {
                Some(_) => assert_eq!(by(keyed(Z)), pool, "{said}"),
                None => assert_eq!(by(keyed(Z)), [""; 0], "{said}"),
            }
        }
    }
}

/// The list of docs/from-openyurt.md.
#[test]
fn where_zones_are_not_quite_pools_the_two_differ() {
    const ZONE_KEYS: &str = "topology.kubernetes.io/zone, kubernetes.io/hostname";
    let chosen = |nodes: &[Node], endpoints: &[Endpoint]| {
        [openyurt("openyurt.io/nodepool"), keyed(ZONE_KEYS)]
            .map(|service| Cluster::of(nodes.to_vec(), service, endpoints.to_vec()).chosen("a"))
    };
    let nodes = with_pools_as_zones([Some("hangzhou"), Some("hangzhou"), Some("shanghai")]);
    let all = on_each(&nodes, true);

    // A node that had another zone before keeps it.
    let mut kept = nodes.clone();
    kept[1] = node("b", &[(H, "b"), (POOL, "hangzhou"), (Z, "cloud")]);
    let both = ["10.244.1.0", "10.244.1.1"].map(str::to_owned).to_vec();
    let own = vec!["10.244.1.0".to_owned()];
    assert_eq!(chosen(&kept, &on_each(&kept, true)), [both.clone(), own.clone()]);
    // A node that has a pool and no zone yet.
    let mut early = nodes.clone();
    early[1] = node("b", &[(H, "b"), (POOL, "hangzhou")]);
    assert_eq!(chosen(&early, &on_each(&early, true)), [both.clone(), own.clone()]);
    // A node that is to join a pool.
    let mut to_join = nodes.clone();
    to_join[1] = node("b", &[(H, "b"), (DESIRED, "hangzhou")]);
    assert_eq!(chosen(&to_join, &on_each(&to_join, true)), [both.clone(), own]);
    // A slice from before the node changed its zone.
    let mut old = all.clone();
    old[2] = endpoint("10.244.1.2", "c").carrying(&[(Z, "hangzhou")]);
    let three = ["10.244.1.0", "10.244.1.1", "10.244.1.2"].map(str::to_owned).to_vec();
    assert_eq!(chosen(&nodes, &old), [both.clone(), three.clone()]);
    // An endpoint without a node, but with a zone.
    let mut loose = all;
    loose[2] = endpoint("10.244.1.2", "").carrying(&[(Z, "hangzhou")]);
    assert_eq!(chosen(&nodes, &loose), [both, three]);
}

/// What `trafficDistribution` makes of the same pools: zone hints, as the EndpointSlice controller writes them.
#[test]
fn hints_of_the_same_pools_leave_an_empty_pool_and_end_with_one_endpoint_in_no_pool() {
    let hinted = |nodes: &[Node]| {
        let all = on_each(nodes, true).into_iter().zip(nodes);
        let hint = |(one, node): (Endpoint, &Node)| match node.labels.get(Z) {
            Some(zone) => one.for_zones(&[&**zone]),
            None => one,
        };
        all.map(hint).collect::<Vec<_>>()
    };
    let chosen = |nodes: &[Node], endpoints: Vec<Endpoint>, this_node| {
        Cluster::of(nodes.to_vec(), service(), endpoints).chosen(this_node)
    };
    let nodes = with_pools_as_zones([Some("hangzhou"), Some("hangzhou"), Some("shanghai")]);
    assert_eq!(chosen(&nodes, hinted(&nodes), "c"), ["10.244.1.2"]);
    // Nobody is left in shanghai: its clients go to hangzhou, where OpenYurt refuses.
    let without = hinted(&nodes)[..2].to_vec();
    assert_eq!(chosen(&nodes, without.clone(), "c"), ["10.244.1.0", "10.244.1.1"]);
    let closed = Cluster::of(nodes, openyurt("openyurt.io/nodepool"), without);
    assert_eq!(closed.chosen("c"), [""; 0]);
    // One endpoint on a node in no pool: every pool is open.
    let nodes = with_pools_as_zones([Some("hangzhou"), None, Some("shanghai")]);
    let all = ["10.244.1.0", "10.244.1.1", "10.244.1.2"];
    assert_eq!(chosen(&nodes, hinted(&nodes), "c"), all);
}

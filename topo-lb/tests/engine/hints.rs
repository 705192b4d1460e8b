//! Policy *hints* against the table of kube-proxy's `CategorizeEndpoints`, and cases beyond it.

use std::sync::Arc;

use topo_lb::cluster::Endpoint;
use topo_lb::topology::{PolicyKind, PolicySource};

use crate::made::{Cluster, Otherwise, Z, endpoint, node, service};

/// 10.1.2.3–6 with hints for these zones.
fn zoned(zones: [&[&str]; 4]) -> Vec<Endpoint> {
    let addresses = ["10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"];
    addresses.iter().zip(zones).map(|(at, zones)| endpoint(at, "far").for_zones(zones)).collect()
}

fn chosen(zone: Option<&str>, endpoints: Vec<Endpoint>) -> Vec<String> {
    let labels: Vec<_> = zone.iter().map(|&zone| (Z, zone)).collect();
    Cluster::of(vec![node("here", &labels)], service(), endpoints).chosen("here")
}

const USUAL: [&[&str]; 4] = [&["zone-a"], &["zone-b"], &["zone-c"], &["zone-a"]];

/// The cases about hints in kube-proxy's `pkg/proxy/topology_test.go`, `TestCategorizeEndpoints`,
/// except annotations that turn hints off: here, as in kube-proxy since 1.33, every hint counts.
#[test]
fn hints_decide_as_kube_proxy_does() {
    let all = ["10.1.2.3", "10.1.2.4", "10.1.2.5", "10.1.2.6"];
    let unready = |mut endpoints: Vec<Endpoint>, which: &[usize]| {
        for &at in which {
            endpoints[at] = endpoints[at].clone().unready();
        }
        endpoints
    };
    let one = || vec![endpoint("10.1.2.3", "far").for_zones(&["zone-a"])];
    for (name, zone, endpoints, expected) in [
        (
            "normal endpoint filtering, auto annotation",
            Some("zone-a"),
            zoned(USUAL),
            &["10.1.2.3", "10.1.2.6"][..],
        ),
        ("empty node labels", None, one(), &["10.1.2.3"]),
        ("empty zone label", Some(""), one(), &["10.1.2.3"]),
        ("node in different zone, no endpoint filtering", Some("zone-b"), one(), &["10.1.2.3"]),
        ("unready endpoint", Some("zone-a"), unready(zoned(USUAL), &[3]), &["10.1.2.3"]),
        (
            "only unready endpoints in same zone (should not filter)",
            Some("zone-a"),
            unready(zoned(USUAL), &[0, 3]),
            &["10.1.2.4", "10.1.2.5"],
        ),
        (
            "missing hints, no filtering applied",
            Some("zone-a"),
            zoned([&["zone-a"], &["zone-b"], &[], &["zone-a"]]),
            &all,
        ),
        (
            "multiple hints per endpoint, filtering includes any endpoint with zone included",
            Some("zone-c"),
            zoned([
                &["zone-a", "zone-b", "zone-c"],
                &["zone-b", "zone-c"],
                &["zone-b", "zone-d"],
                &["zone-c"],
            ]),
            &["10.1.2.3", "10.1.2.4", "10.1.2.6"],
        ),
    ] {
        assert_eq!(chosen(zone, endpoints), expected, "{name}");
    }
}

/// The cases of the same table about readiness and `internalTrafficPolicy`, for ClusterIP traffic.
#[test]
fn readiness_and_local_traffic_are_kube_proxys() {
    let local = |at| endpoint(at, "here");
    let far = |at| endpoint(at, "far");
    for (name, internal_local, endpoints, expected) in [
        (
            "internalTrafficPolicy: Local, topology ignored for Local endpoints",
            true,
            vec![
                local("10.1.2.3").for_zones(&["zone-a"]),
                local("10.1.2.4").for_zones(&["zone-b"]),
                far("10.1.2.5").for_zones(&["zone-c"]),
                far("10.1.2.6").for_zones(&["zone-a"]),
            ],
            &["10.1.2.3", "10.1.2.4"][..],
        ),
        ("internalTrafficPolicy: Local, with empty endpoints", true, vec![], &[]),
        (
            "internalTrafficPolicy: Local, but all endpoints are remote",
            true,
            vec![far("10.0.0.0"), far("10.0.0.1")],
            &[],
        ),
        (
            "internalTrafficPolicy: Local, all endpoints are local",
            true,
            vec![local("10.0.0.0"), local("10.0.0.1")],
            &["10.0.0.0", "10.0.0.1"],
        ),
        (
            "internalTrafficPolicy: Local, some endpoints are local",
            true,
            vec![local("10.0.0.0"), far("10.0.0.1")],
            &["10.0.0.0"],
        ),
        (
            "Cluster traffic policy, endpoints not Ready",
            false,
            vec![far("10.0.0.0").unready(), far("10.0.0.1").unready()],
            &[],
        ),
        (
            "Cluster traffic policy, some endpoints are Ready",
            false,
            vec![far("10.0.0.0").unready(), far("10.0.0.1")],
            &["10.0.0.1"],
        ),
        (
            "Cluster traffic policy, PTE enabled, all endpoints are terminating",
            false,
            vec![local("10.0.0.0").draining(), far("10.0.0.1").draining()],
            &["10.0.0.0", "10.0.0.1"],
        ),
        (
            "iTP: Local, eTP: Local, PTE enabled, all endpoints remote and terminating",
            true,
            vec![far("10.0.0.0").draining(), far("10.0.0.1").draining()],
            &[],
        ),
        (
            "iTP: Cluster, eTP: Local, PTE enabled, with terminating endpoints",
            false,
            vec![
                far("10.0.0.0"),
                local("10.0.0.1").unready(),
                local("10.0.0.2").draining(),
                far("10.0.0.3").draining(),
            ],
            &["10.0.0.0"],
        ),
    ] {
        let mut service = service();
        service.internal_local = internal_local;
        let nodes = vec![node("here", &[(Z, "zone-a")])];
        let cluster = Cluster::of(nodes, service, endpoints);
        assert_eq!(cluster.chosen("here"), expected, "{name}");
    }
}

#[test]
fn node_hints_come_before_zone_hints() {
    let cluster = |second: &[&str]| {
        Cluster::of(
            vec![node("n1", &[(Z, "a")]), node("n2", &[(Z, "a")])],
            service(),
            vec![
                endpoint("10.0.0.1", "n1").for_nodes(&["n1"]).for_zones(&["a"]),
                endpoint("10.0.0.2", "n2").for_nodes(second).for_zones(&["a"]),
                endpoint("10.0.0.3", "n3").for_nodes(&["n3"]).for_zones(&["b"]),
            ],
        )
    };
    assert_eq!(cluster(&["n2"]).chosen("n1"), ["10.0.0.1"]);
    assert_eq!(cluster(&["n2", "n1"]).chosen("n1"), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(cluster(&[]).chosen("n1"), ["10.0.0.1", "10.0.0.2"], "one lacks it: zones decide");
    assert_eq!(cluster(&["n2"]).chosen("n4"), ["10.0.0.1", "10.0.0.2", "10.0.0.3"], "no zone");
}

#[test]
fn hints_are_ignored_where_nothing_is_ready() {
    let nodes = vec![node("here", &[(Z, "a")])];
    let cluster = Cluster::of(
        nodes,
        service(),
        vec![
            endpoint("10.0.0.1", "here").for_zones(&["a"]).draining(),
            endpoint("10.0.0.2", "far").for_zones(&["b"]).draining(),
        ],
    );
    assert_eq!(cluster.chosen("here"), ["10.0.0.1", "10.0.0.2"]);
}

#[test]
fn a_lone_local_pod_that_is_not_ready_does_not_capture_traffic() {
    let nodes = vec![node("here", &[(Z, "a")])];
    let cluster = Cluster::of(
        nodes,
        service(),
        vec![
            endpoint("10.0.0.1", "here").for_nodes(&["here"]).for_zones(&["a"]).draining(),
            endpoint("10.0.0.2", "far").for_nodes(&["far"]).for_zones(&["a"]),
        ],
    );
    assert_eq!(cluster.chosen("here"), ["10.0.0.2"]);
}

#[test]
fn an_unready_endpoint_without_hints_does_not_switch_them_off() {
    let nodes = vec![node("here", &[(Z, "a")])];
    let cluster = Cluster::of(
        nodes,
        service(),
        vec![
            endpoint("10.0.0.1", "n1").for_zones(&["a"]),
            endpoint("10.0.0.2", "n2").for_zones(&["b"]),
            endpoint("10.0.0.3", "n3").unready(),
        ],
    );
    assert_eq!(cluster.chosen("here"), ["10.0.0.1"]);
    cluster.decided("here", |decision| {
        assert_eq!(decision.policy.source, PolicySource::Hints);
        assert_eq!(decision.policy.kind, PolicyKind::Hints);
    });
}

#[test]
fn keys_and_openyurt_come_before_hints() {
    let endpoints = vec![
        endpoint("10.0.0.1", "n1").for_zones(&["a"]),
        endpoint("10.0.0.2", "n2").for_zones(&["b"]),
    ];
    let nodes =
        vec![node("n1", &[(Z, "a"), ("rack", "x")]), node("n2", &[(Z, "b"), ("rack", "x")])];
    let by_keys = Cluster::of(nodes.clone(), crate::made::keyed("rack"), endpoints.clone());
    assert_eq!(by_keys.chosen("n1"), ["10.0.0.1", "10.0.0.2"]);
    let mut openyurt = service();
    Arc::make_mut(&mut openyurt.policy).openyurt = Some("kubernetes.io/hostname".into());
    assert_eq!(Cluster::of(nodes, openyurt, endpoints).chosen("n2"), ["10.0.0.2"]);
}

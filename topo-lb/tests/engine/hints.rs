//! Policy *hints* against the table of kube-proxy's `CategorizeEndpoints`, and cases beyond it.

use topo_lb_core::cluster::{Endpoint, Service};
use topo_lb_core::topology::{PolicyKind, PolicySource};

use crate::made::{Cluster, H, Otherwise, Z, endpoint, keyed, node, openyurt, service};

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

fn here(address: &str) -> Endpoint {
    endpoint(address, "here")
}

fn far(address: &str) -> Endpoint {
    endpoint(address, "far")
}

fn unready(address: &str) -> Endpoint {
    far(address).unready()
}

fn draining(address: &str) -> Endpoint {
    far(address).draining()
}

/// The cases of the same table about readiness and `internalTrafficPolicy`, for ClusterIP traffic:
/// whether that is `Local`; the endpoints 10.0.0.0, 10.0.0.1, …; which of them are expected.
#[test]
fn readiness_and_local_traffic_are_kube_proxys() {
    type Case = (&'static str, bool, &'static [fn(&str) -> Endpoint], &'static [usize]);
    let cases: [Case; 10] = [
        (
            "internalTrafficPolicy: Local, topology ignored for Local endpoints",
            true,
            &[
                |at| here(at).for_zones(&["zone-a"]),
                |at| here(at).for_zones(&["zone-b"]),
                |at| far(at).for_zones(&["zone-c"]),
                |at| far(at).for_zones(&["zone-a"]),
            ],
            &[0, 1],
        ),
        ("internalTrafficPolicy: Local, with empty endpoints", true, &[], &[]),
        ("internalTrafficPolicy: Local, but all endpoints are remote", true, &[far, far], &[]),
        ("internalTrafficPolicy: Local, all endpoints are local", true, &[here, here], &[0, 1]),
        ("internalTrafficPolicy: Local, some endpoints are local", true, &[here, far], &[0]),
        ("Cluster traffic policy, endpoints not Ready", false, &[unready, unready], &[]),
        ("Cluster traffic policy, some endpoints are Ready", false, &[unready, far], &[1]),
        (
            "Cluster traffic policy, PTE enabled, all endpoints are terminating",
            false,
            &[|at| here(at).draining(), draining],
            &[0, 1],
        ),
        (
            "iTP: Local, eTP: Local, PTE enabled, all endpoints remote and terminating",
            true,
            &[draining, draining],
            &[],
        ),
        (
            "iTP: Cluster, eTP: Local, PTE enabled, with terminating endpoints",
            false,
            &[far, |at| here(at).unready(), |at| here(at).draining(), draining],
            &[0],
        ),
    ];
    for (name, internal_local, endpoints, expected) in cases {
        let address = |at| format!("10.0.0.{at}");
        let endpoints = endpoints.iter().enumerate().map(|(at, made)| made(&address(at))).collect();
        let service = Service { internal_local, ..service() };
        let cluster = Cluster::of(vec![node("here", &[(Z, "zone-a")])], service, endpoints);
        let expected: Vec<_> = expected.iter().map(|&at| address(at)).collect();
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

/// Checks which endpoints a Service has on node `here` in zone `a`.
#[track_caller]
fn chooses(endpoints: Vec<Endpoint>, expected: &[&str]) {
    assert_eq!(chosen(Some("a"), endpoints), expected);
}

#[test]
fn only_ready_endpoints_and_their_hints_count() {
    let zone_a = here("10.0.0.1").for_zones(&["a"]);
    let zone_b = far("10.0.0.2").for_zones(&["b"]);
    // Where nothing is ready, hints are ignored.
    let both = vec![zone_a.clone().draining(), zone_b.clone().draining()];
    chooses(both, &["10.0.0.1", "10.0.0.2"]);
    // A lone local Pod that is not ready does not capture traffic.
    let lone = zone_a.clone().for_nodes(&["here"]).draining();
    chooses(vec![lone, far("10.0.0.2").for_nodes(&["far"]).for_zones(&["a"])], &["10.0.0.2"]);
    // An unready endpoint without hints does not switch them off.
    let endpoints = vec![zone_a, zone_b, unready("10.0.0.3")];
    chooses(endpoints.clone(), &["10.0.0.1"]);
    let cluster = Cluster::of(vec![node("here", &[(Z, "a")])], service(), endpoints);
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
    let by_keys = Cluster::of(nodes.clone(), keyed("rack"), endpoints.clone());
    assert_eq!(by_keys.chosen("n1"), ["10.0.0.1", "10.0.0.2"]);
    assert_eq!(Cluster::of(nodes, openyurt(H), endpoints).chosen("n2"), ["10.0.0.2"]);
}

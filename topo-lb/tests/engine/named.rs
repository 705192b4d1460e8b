//! The names of headless Services.

use std::net::IpAddr;

use topo_lb_core::cluster::State;
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::named::{Group, Groups, Named, fault, named};
use topo_lb_kube::source::file::example::updates;

/// `shop/db`, headless, with an endpoint in each of three zones; two of them also by IPv6.
const CLUSTER: &str = "
apiVersion: v1
kind: Node
metadata: {name: here, labels: {topology.kubernetes.io/zone: a}}
---
apiVersion: v1
kind: Service
metadata:
  name: db
  namespace: shop
  labels: {service.kubernetes.io/headless: ''}
  annotations:
    topo-lb.io/dns: 'true'
    topo-lb.io/topology-keys: topology.kubernetes.io/zone
spec: {clusterIP: None, ports: [{name: sql, port: 5432}, {name: admin, port: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: db-4
  namespace: shop
  labels: {kubernetes.io/service-name: db, service.kubernetes.io/headless: ''}
addressType: IPv4
ports: [{name: sql, port: 5432}]
endpoints:
- {addresses: [10.0.0.1], zone: a}
- {addresses: [10.0.0.2], zone: b}
- {addresses: [10.0.0.3], zone: c}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: db-6, namespace: shop, labels: {kubernetes.io/service-name: db}}
addressType: IPv6
ports: [{name: sql, port: 5432}]
endpoints:
- {addresses: ['fd00::2'], zone: b}
- {addresses: ['fd00::3'], zone: c}
";

fn of(cluster: &str, scope: Scope) -> Option<Named> {
    let mut state = State::default();
    for update in updates(cluster) {
        let _ = state.apply(update, "here");
    }
    let id = state.services().next().cloned().expect("a Service");
    named(&state, "here", scope, &id)
}

/// The last number of each address, by groups.
fn last(groups: Option<&Groups>) -> Option<Vec<Vec<u8>>> {
    let number = |address: &IpAddr| match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    };
    let of = |group: &Group| group.addresses.iter().map(number).collect();
    groups.map(|groups| groups.iter().map(of).collect())
}

#[test]
fn a_name_stands_for_the_chosen_tier_of_each_family() {
    for (keys, v4, v6) in [
        ("zone", vec![vec![1]], vec![]),
        ("zone,*", vec![vec![1]], vec![vec![2, 3]]),
        ("*", vec![vec![1, 2, 3]], vec![vec![2, 3]]),
    ] {
        let keys =
            format!("topology-keys: '{}'", keys.replace("zone", "topology.kubernetes.io/zone"));
        let cluster = CLUSTER.replace("topology-keys: topology.kubernetes.io/zone", &keys);
        let named = of(&cluster, Scope::OptIn).expect("ours");
        assert_eq!(last(named.v4.as_ref()), Some(v4), "{keys}");
        assert_eq!(last(named.v6.as_ref()), Some(v6), "{keys}");
    }
}

#[test]
fn spilled_answers_have_their_share() {
    let spill = "topology-keys: 'topology.kubernetes.io/zone,*'\n    topo-lb.io/spill: 10%";
    let cluster = CLUSTER.replace("topology-keys: topology.kubernetes.io/zone", spill);
    let named = of(&cluster, Scope::All).expect("ours");
    let groups = named.v4.expect("IPv4");
    assert_eq!(last(Some(&groups)), Some(vec![vec![1], vec![2, 3]]));
    assert!((groups[1].share - 0.1).abs() < 1e-9, "{groups:?}");
}

#[test]
fn whoever_did_not_ask_for_it_or_could_not_is_left_to_the_cluster_dns() {
    let keys = "    topo-lb.io/topology-keys: topology.kubernetes.io/zone\n";
    for (what, cluster) in [
        ("without the annotation", CLUSTER.replace("topo-lb.io/dns: 'true'", "x: y")),
        ("with another value", CLUSTER.replace("'true'", "maybe")),
        ("without a policy", CLUSTER.replace(keys, "")),
        ("left alone", CLUSTER.replace(keys, &format!("{keys}    topo-lb.io/handle: 'false'\n"))),
        ("with a ClusterIP", CLUSTER.replace("clusterIP: None", "clusterIP: 10.96.0.7")),
        (
            "without ports",
            CLUSTER.replace("ports: [{name: sql, port: 5432}, {name: admin, port: 8080}]", ""),
        ),
        ("without endpoints", CLUSTER.replace("service-name: db", "service-name: other")),
    ] {
        assert_eq!(of(&cluster, Scope::All), None, "{what}");
    }
}

#[test]
fn an_annotation_without_effect_is_told() {
    let keys = "    topo-lb.io/topology-keys: topology.kubernetes.io/zone\n";
    for (cluster, wanted) in [
        (CLUSTER.to_owned(), None),
        (CLUSTER.replace("'true'", "'false'"), None),
        (CLUSTER.replace("'true'", "maybe"), Some("`maybe` is neither `true` nor `false`")),
        (CLUSTER.replace("clusterIP: None", "clusterIP: 10.96.0.7"), Some("is not headless")),
        (CLUSTER.replace(keys, ""), Some("has no policy")),
    ] {
        let mut state = State::default();
        for update in updates(&cluster) {
            let _ = state.apply(update, "here");
        }
        let id = state.services().next().cloned().expect("a Service");
        let fault = state.service(&id).and_then(|service| fault(&state, service));
        let fault = fault.unwrap_or_default();
        assert!(wanted.map_or(fault.is_empty(), |wanted| fault.contains(wanted)), "{fault}");
    }
}

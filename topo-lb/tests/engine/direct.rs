//! `topo-lb.io/direct`, beyond what the second implementation knows of it.

use topo_lb_core::cluster::Namespace;
use topo_lb_core::explain;
use topo_lb_core::lint::{self, Rule};
use topo_lb_core::topology::direct::MOST;
use topo_lb_core::topology::{Scope, Verdict};

use crate::made::{Asking as _, Cluster, H, asking, endpoint, id, keyed, node, service};

/// `svc` with an endpoint on this node, and so many on another one.
fn cluster(far: usize) -> Cluster {
    let mut endpoints = vec![endpoint("10.1.0.1", "here")];
    endpoints.extend((0..far).map(|at| {
        let address = format!("10.2.{}.{}", at / 250, at % 250 + 1);
        endpoint(&address, "there")
    }));
    let service = keyed(H).asking(|policy| policy.direct = Some("refuse".into()));
    Cluster::of(vec![node("here", &[(H, "here")]), node("there", &[])], service, endpoints)
}

/// How many endpoints are refused, and what `explain` says of it.
fn refused(cluster: &Cluster) -> (usize, Option<String>) {
    let routes = cluster.routes("here");
    assert_eq!(routes[0].verdict, Verdict::Route);
    let direct = routes[1..].iter().map(|route| route.frontends.len()).sum();
    let report = explain::report(&cluster.state("here"), "here", Scope::All, &[id("svc")]);
    (direct, report.services[0].direct.clone())
}

fn said(count: usize) -> (usize, Option<String>) {
    (count, Some(format!("{count} endpoints are refused to clients that dial them by address")))
}

#[test]
fn up_to_a_thousand_endpoints_are_refused_and_of_more_none() {
    assert_eq!(refused(&cluster(MOST)), said(MOST));
    let rules = |far| -> Vec<_> {
        let findings = lint::findings(&cluster(far).state(""), Scope::All).into_iter();
        findings.map(|one| one.rule).filter(|rule| *rule == Rule::Exposed).collect()
    };
    // All of them, with the one that is here: from nowhere, none is near.
    assert_eq!((rules(MOST - 1), rules(MOST)), (vec![], vec![Rule::Exposed]));
    let text = "not refused: 1001 IPv4 endpoints would be, and at most 1000 can be";
    assert_eq!(refused(&cluster(MOST + 1)), (0, Some(text.to_owned())));
}

#[test]
fn an_endpoint_without_a_node_is_dialled_by_anybody() {
    let mut cluster = cluster(2);
    cluster.slices[0].endpoints.push(endpoint("10.3.0.1", ""));
    assert_eq!(refused(&cluster), said(2));
}

#[test]
fn a_service_may_allow_what_its_namespace_refuses() {
    let mut cluster = cluster(2);
    let refusing = asking(|policy| policy.direct = Some("refuse".into())).policy;
    let name = service().id.namespace;
    cluster.namespaces = vec![Namespace { name, policy: refusing, ..Namespace::default() }];
    cluster.services = vec![keyed(H)];
    assert_eq!(refused(&cluster), said(2));
    cluster.services = vec![keyed(H).asking(|policy| policy.direct = Some("allow".into()))];
    assert_eq!(refused(&cluster), (0, None));
    // A Namespace need not know which of its Services are strict.
    cluster.services = vec![keyed(&format!("{H},*"))];
    assert_eq!(refused(&cluster), (0, None));
    assert!(cluster.decided("here", |decision| decision.policy.ignored.is_empty()));
}

//! What a change does to clients and endpoints.

use std::collections::BTreeSet;

use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{Endpoint, Node, Service, ServiceId};
use topo_lb_core::topology::Scope;
use topo_lb_core::what_if::{self, Both, Group, Proxied, ServicePort};

use crate::made::{
    Asking as _, Cluster, H, Otherwise as _, Z, endpoint, id, keyed, node, of_cluster, policy,
    service,
};

pub(crate) fn proxied(cluster: &Cluster) -> Proxied {
    Proxied::of(cluster.state(""), Scope::All)
}

pub(crate) fn asked() -> BTreeSet<ServiceId> {
    [id("svc")].into()
}

/// Compares by zone, and asks `check` about the only Service port.
fn compared(before: &Cluster, after: &Cluster, check: impl FnOnce(&ServicePort<'_>)) {
    let (before, after) = (proxied(before), proxied(after));
    let report = what_if::compare(&before, &after, Z, &asked(), None);
    assert_eq!(report.services.len(), 1);
    check(&report.services[0]);
}

/// Two nodes in zone `a`, one in `b`, one without a zone.
pub(crate) fn nodes() -> Vec<Node> {
    [("a1", Some("a")), ("a2", Some("a")), ("b1", Some("b")), ("bare", None)]
        .map(|(name, zone)| {
            let labels: Vec<_> =
                [(H, name)].into_iter().chain(zone.map(|zone| (Z, zone))).collect();
            node(name, &labels)
        })
        .into()
}

/// One endpoint in each zone.
fn endpoints() -> Vec<Endpoint> {
    vec![endpoint("10.0.0.1", "a1"), endpoint("10.0.0.2", "b1")]
}

pub(crate) fn with(service: Service) -> Cluster {
    Cluster::of(nodes(), service, endpoints())
}

pub(crate) fn loads(port: &ServicePort<'_>) -> Vec<(f64, f64, Option<f64>)> {
    let load = |one: &what_if::Endpoint<'_>| (one.load.before, one.load.after, one.times);
    port.endpoints.iter().map(load).collect()
}

fn group<'a, 'b>(port: &'b ServicePort<'a>, value: Option<&str>) -> &'b Group<'a> {
    port.groups.iter().find(|group| group.value == value).unwrap()
}

#[test]
fn a_policy_moves_load_to_the_endpoints_that_it_chooses() {
    compared(&with(service()), &with(keyed(&format!("{Z},*"))), |port| {
        // Before, each of four clients uses both endpoints. After, two stay in a and one in b, and
        // the one without a zone uses both.
        assert_eq!(loads(port), [(2.0, 2.5, Some(1.25)), (2.0, 1.5, Some(0.75))]);
        assert_eq!(group(port, Some("a")).endpoints, Both { before: 2, after: 1 });
        assert!(port.changes && !port.is_problem());
    });
}

#[test]
fn a_strict_policy_newly_refuses_nodes_without_an_endpoint() {
    compared(&with(service()), &with(keyed(H)), |port| {
        assert_eq!(group(port, Some("a")).newly_refused, ["a2"]);
        assert_eq!(group(port, Some("a")).refused, Both { before: 0, after: 1 });
        assert_eq!(group(port, None).newly_refused, ["bare"]);
        assert!(group(port, Some("b")).newly_refused.is_empty());
        assert!(port.is_problem());
    });
}

#[test]
fn an_intended_refusal_is_no_problem() {
    let intended = keyed(H).asking(|policy| policy.refusal = Some("intended".into()));
    compared(&with(service()), &with(intended), |port| {
        assert!(port.newly_refuses() && !port.is_problem());
    });
}

#[test]
fn a_policy_that_is_ignored_is_a_problem() {
    compared(&with(service()), &with(keyed("*,a")), |port| {
        assert_eq!(port.newly_ignored().len(), 1);
        assert!(port.is_problem());
    });
    compared(&with(keyed("*,a")), &with(keyed("*,a")), |port| assert!(!port.is_problem()));
}

#[test]
fn a_node_that_is_served_again_is_named() {
    compared(&with(keyed(H)), &with(keyed(&format!("{H},*"))), |port| {
        assert_eq!(group(port, Some("a")).served_again, ["a2"]);
        assert_eq!(group(port, None).served_again, ["bare"]);
    });
}

#[test]
fn a_node_that_stays_refused_in_another_zone_is_not_newly_refused() {
    let mut moved = with(keyed(H));
    moved.nodes[1] = node("a2", &[(H, "a2"), (Z, "b")]);
    compared(&with(keyed(H)), &moved, |port| {
        assert_eq!(group(port, Some("b")).refused, Both { before: 0, after: 1 });
        assert!(!port.newly_refuses());
        assert!(port.groups.iter().all(|group| group.served_again.is_empty()));
    });
}

#[test]
fn the_share_that_stays_counts_the_zone_and_the_node() {
    compared(&with(service()), &with(keyed(&format!("{Z},*"))), |port| {
        assert_eq!(group(port, Some("a")).staying, Both { before: Some(0.5), after: Some(1.0) });
        assert_eq!(group(port, None).staying, Both { before: Some(0.0), after: Some(0.0) });
    });
    let here = Cluster::of(nodes(), service(), vec![endpoint("10.0.0.1", "bare")]);
    compared(&here, &here, |port| {
        assert_eq!(group(port, None).staying.after, Some(1.0));
    });
}

#[test]
fn spilled_connections_are_load_of_the_wider_tier() {
    let spilling = keyed(&format!("{Z},*")).asking(|policy| policy.spill = Some("50%".into()));
    compared(&with(keyed(&format!("{Z},*"))), &with(spilling), |port| {
        assert_eq!(loads(port), [(2.5, 2.0, Some(0.8)), (1.5, 2.0, Some(1.333_333))]);
    });
}

#[test]
fn refused_direct_dials_refuse_no_node() {
    let strict = with(keyed(Z));
    let refusing = with(keyed(Z).asking(|policy| policy.direct = Some("refuse".into())));
    compared(&strict, &refusing, |port| {
        assert!(port.changes && !port.newly_refuses());
        // Each passes over an endpoint, the one without a zone both.
        assert_eq!(port.refused_direct, Both { before: 0, after: 4 });
        assert_eq!(port.groups.iter().map(|it| it.nodes.after).sum::<usize>(), nodes().len());
    });
    compared(&refusing, &refusing, |port| assert!(!port.changes));
}

#[test]
fn an_endpoint_without_load_before_has_no_factor() {
    let mut grown = with(service());
    grown.slices[0].endpoints.push(endpoint("10.0.0.3", "b1"));
    compared(&with(service()), &grown, |port| {
        assert_eq!(loads(port)[2], (0.0, 1.333_333, None));
    });
}

#[test]
fn an_added_service_has_no_policy_before_and_a_removed_one_none_after() {
    let mut without = with(service());
    without.services.clear();
    compared(&without, &with(service()), |port| {
        assert!(port.changes && port.served.before.is_none() && port.served.after.is_some());
        assert_eq!(group(port, Some("a")).nodes, Both { before: 0, after: 2 });
    });
    compared(&with(keyed(H)), &without, |port| {
        assert!(port.served.after.is_none());
        assert!(port.groups.iter().all(|group| group.served_again.is_empty()));
    });
}

#[test]
fn nodes_that_come_and_go_are_clients_that_come_and_go() {
    let mut fewer = with(keyed(&format!("{Z},*")));
    fewer.nodes.remove(1);
    compared(&with(keyed(&format!("{Z},*"))), &fewer, |port| {
        assert_eq!(loads(port)[0], (2.5, 1.5, Some(0.6)));
        assert_eq!(group(port, Some("a")).nodes, Both { before: 2, after: 1 });
    });
}

#[test]
fn kube_proxy_serves_what_topo_lb_leaves_alone() {
    let left = keyed(H).asking(|policy| policy.handle = Some("false".into()));
    compared(&with(left), &with(keyed(H)), |port| {
        let by = |served: &Option<what_if::Served>| served.as_ref().map(|served| served.by);
        assert_eq!(by(&port.served.before), Some("kube-proxy"));
        assert_eq!(by(&port.served.after), Some("topo-lb"));
        assert_eq!(loads(port), [(2.0, 1.0, Some(0.5)), (2.0, 1.0, Some(0.5))]);
        assert_eq!(group(port, None).newly_refused, ["bare"]);
    });
}

#[test]
fn kube_proxy_follows_hints() {
    let hinted = || {
        let [one, other] = <[Endpoint; 2]>::try_from(endpoints()).unwrap();
        vec![one.for_zones(&["a"]), other.for_zones(&["b"])]
    };
    let cluster = Cluster::of(nodes(), service(), hinted());
    let opted_in = Proxied::of(cluster.state(""), Scope::OptIn);
    let asked = asked();
    let report = what_if::compare(&opted_in, &opted_in, Z, &asked, None);
    assert_eq!(report.services[0].served.after.as_ref().unwrap().by, "kube-proxy");
    assert_eq!(group(&report.services[0], Some("a")).endpoints.after, 1);
}

#[test]
fn each_address_family_is_a_row_of_its_own() {
    let mut dual = service();
    dual.cluster_ips.push("fd00::1".parse().unwrap());
    let (before, after) = (proxied(&with(service())), proxied(&with(dual)));
    let asked = asked();
    let report = what_if::compare(&before, &after, Z, &asked, None);
    let families: Vec<_> = report.services.iter().map(|port| (port.family, port.changes)).collect();
    assert_eq!(families, [("IPv4", false), ("IPv6", true)]);
}

#[test]
fn only_what_changes_or_is_asked_for_is_reported() {
    let cluster = proxied(&with(keyed(H)));
    let nothing = BTreeSet::new();
    let quiet = what_if::compare(&cluster, &cluster, Z, &nothing, None);
    assert!(quiet.services.is_empty());
    assert_eq!((quiet.totals.service_ports, quiet.totals.changed), (1, 0));
    let asked = asked();
    assert!(!what_if::compare(&cluster, &cluster, Z, &asked, None).services[0].changes);
}

#[test]
fn a_policy_of_many_services_changes_each_of_them() {
    let before = with(service());
    let by_field = |policy: &mut PolicySources| policy.spec_topology_keys = vec![H.into()];
    let mut after = before.clone();
    after.cluster_policies = vec![of_cluster(policy("near", by_field))];
    let (before, after) = (proxied(&before), proxied(&after));
    let report = what_if::compare(&before, &after, Z, &BTreeSet::new(), None);
    assert_eq!((report.totals.changed, report.services.len()), (1, 1));
}

#[test]
fn a_cluster_that_lacks_a_kind_of_object_is_not_whole() {
    let whole = with(service());
    assert_eq!(what_if::whole(&whole.state("")), Ok(()));
    let sentence = |cluster: Cluster| what_if::whole(&cluster.state("")).unwrap_err().to_string();
    assert!(sentence(Cluster { nodes: vec![], ..whole.clone() }).starts_with("there is no Node"));
    assert!(sentence(Cluster { services: vec![], ..whole.clone() }).contains("no Service in"));
    assert!(sentence(Cluster { slices: vec![], ..whole }).contains("no EndpointSlice"));
}

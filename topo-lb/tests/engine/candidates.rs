//! Which endpoints a Service port has, and which are usable.

use std::net::SocketAddr;

use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::service::Protocol;
use topo_lb_core::cluster::{Endpoint, Service, Slice};
use topo_lb_core::topology::cause::{Cause, Missing};
use topo_lb_core::topology::decision::Status;
use topo_lb_core::topology::{Route, Verdict};

use crate::made::{Cluster, Otherwise, R, Z, endpoint, id, keyed, node, port, service, slice};

fn addresses(route: &Route) -> Vec<String> {
    route.endpoints.iter().map(|one| one.address().to_string()).collect()
}

fn sockets(route: &Route) -> Vec<String> {
    route.serving.iter().map(SocketAddr::to_string).collect()
}

#[test]
fn terminating_endpoints_that_serve_stand_in_when_nothing_is_ready() {
    let all = vec![
        endpoint("10.0.0.1", "n1").draining(),
        endpoint("10.0.0.2", "n2").unready(),
        endpoint("10.0.0.3", "n3").gone(),
    ];
    let cluster = Cluster::of(vec![], service(), all.clone());
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1"]);
    let all = [all, vec![endpoint("10.0.0.4", "n4")]].concat();
    assert_eq!(Cluster::of(vec![], service(), all).chosen("n1"), ["10.0.0.4"]);
}

#[test]
fn serving_without_terminating_is_not_enough_to_stand_in() {
    let starting = Endpoint { ready: false, ..endpoint("10.0.0.1", "n1") };
    let cluster = Cluster::of(vec![], service(), vec![starting]);
    assert_eq!(cluster.routes("n1")[0].verdict, Verdict::Refuse);
    assert_eq!(sockets(&cluster.routes("n1")[0]), ["10.0.0.1:9376"], "flows it has may stay");
}

#[test]
fn what_serves_and_is_not_chosen_may_keep_its_flows() {
    let nodes = vec![node("n1", &[(Z, "a")]), node("n2", &[(Z, "b")])];
    let cluster = Cluster::of(
        nodes,
        keyed(Z),
        vec![
            endpoint("10.0.0.1", "n1"),
            endpoint("10.0.0.2", "n2"),
            endpoint("10.0.0.3", "n1").draining(),
            endpoint("10.0.0.4", "n1").gone(),
            endpoint("10.0.0.5", "n1").unready(),
        ],
    );
    let route = &cluster.routes("n1")[0];
    assert_eq!(addresses(route), ["10.0.0.1:9376"]);
    assert_eq!(sockets(route), ["10.0.0.2:9376", "10.0.0.3:9376"]);
}

#[test]
fn an_address_in_two_slices_is_one_endpoint_and_the_one_that_lives_wins() {
    for terminating_first in [true, false] {
        let dying = slice("svc-a", vec![endpoint("10.0.0.1", "old").draining()]);
        let living = slice("svc-b", vec![endpoint("10.0.0.1", "new")]);
        let mut cluster = Cluster::of(vec![], service(), vec![]);
        cluster.slices = if terminating_first { vec![dying, living] } else { vec![living, dying] };
        for (a, b) in [("svc-a", "svc-b"), ("svc-b", "svc-a")] {
            cluster.slices[0].id.name = a.into();
            cluster.slices[1].id.name = b.into();
            assert_eq!(cluster.chosen("n"), ["10.0.0.1"]);
            cluster.decided("n", |decision| {
                assert_eq!(decision.endpoints.len(), 1);
                assert_eq!(decision.endpoints[0].node, Some("new"));
            });
        }
    }
}

#[test]
fn the_same_address_with_another_port_is_another_endpoint() {
    let mut second = slice("svc-2", vec![endpoint("10.0.0.1", "n")]);
    second.ports = vec![port("http", 8080, Protocol::Tcp)];
    let mut cluster = Cluster::of(vec![], service(), vec![endpoint("10.0.0.1", "n")]);
    cluster.slices.push(second);
    assert_eq!(addresses(&cluster.routes("n")[0]), ["10.0.0.1:8080", "10.0.0.1:9376"]);
}

#[test]
fn slice_ports_match_by_name_and_each_slice_has_its_own_number() {
    let names = ["http", "metrics", ""].into_iter().zip(80..);
    let ports = names.map(|(name, number)| port(name, number, Protocol::Tcp)).collect();
    let service = Service { ports, ..service() };
    let mut first = slice("svc-1", vec![endpoint("10.0.0.1", "n")]);
    first.ports = vec![port("metrics", 9100, Protocol::Tcp), port("http", 8080, Protocol::Tcp)];
    let mut second = slice("svc-2", vec![endpoint("10.0.0.2", "n")]);
    second.ports = vec![port("http", 8081, Protocol::Tcp), port("", 1, Protocol::Tcp)];
    let mut cluster = Cluster::of(vec![], service, vec![]);
    cluster.slices = vec![first, second];
    let routes = cluster.routes("n");
    assert_eq!(addresses(&routes[0]), ["10.0.0.1:8080", "10.0.0.2:8081"]);
    assert_eq!(addresses(&routes[1]), ["10.0.0.1:9100"]);
    assert_eq!(addresses(&routes[2]), ["10.0.0.2:1"]);
    let names: Vec<_> = routes.iter().map(|route| &*route.name).collect();
    assert_eq!(names, ["default/svc:http", "default/svc:metrics", "default/svc:82"]);
}

#[test]
fn a_slice_port_of_another_protocol_is_another_port() {
    let dns = Service { ports: vec![port("dns", 53, Protocol::Udp)], ..service() };
    let mut cluster = Cluster::of(vec![], dns, vec![endpoint("10.0.0.1", "n")]);
    cluster.slices[0].ports = vec![port("dns", 53, Protocol::Tcp)];
    assert_eq!(cluster.routes("n")[0].verdict, Verdict::Refuse);
    cluster.decided("n", |decision| {
        assert_eq!(decision.choices[0].cause, Cause::NoEndpoint(Missing::Port));
    });
}

#[test]
fn a_port_without_endpoints_says_what_it_lacks() {
    let lack = |cluster: &Cluster| {
        assert_eq!(cluster.routes("n")[0].verdict, Verdict::Refuse);
        cluster.decided("n", |decision| match decision.choices[0].cause {
            Cause::NoEndpoint(lack) => lack,
            other => panic!("{other:?}"),
        })
    };
    let mut cluster = Cluster::of(vec![], service(), vec![]);
    assert_eq!(lack(&cluster), Missing::Endpoints);
    cluster.slices.push(slice("svc-6", vec![endpoint("fd00::1", "n")]));
    assert_eq!(lack(&cluster), Missing::Family);
    cluster.slices.iter_mut().for_each(|slice| slice.service = Some(id("other")));
    assert_eq!(lack(&cluster), Missing::Slices);
    cluster.slices.iter_mut().for_each(|slice| slice.service = None);
    assert_eq!(lack(&cluster), Missing::Slices);
}

#[test]
fn slices_labelled_headless_are_not_for_proxies() {
    let mut cluster = Cluster::of(vec![], service(), vec![endpoint("10.0.0.2", "n")]);
    let all = vec![endpoint("10.0.0.1", "n"), endpoint("10.0.0.2", "n")];
    cluster.slices.push(Slice { headless: true, ..slice("svc-0", all) });
    let route = &cluster.routes("n")[0];
    assert_eq!((addresses(route), sockets(route)), (vec!["10.0.0.2:9376".into()], vec![]));
    cluster.decided("n", |decision| {
        let shown: Vec<_> = decision.endpoints.iter().map(|one| &one.status).collect();
        assert_eq!(shown, [&Status::HeadlessSlice, &Status::Chosen(Cause::Unconstrained)]);
    });
    cluster.slices.remove(0);
    assert_eq!(cluster.routes("n")[0].verdict, Verdict::Refuse);
    cluster.decided("n", |decision| {
        assert_eq!(decision.choices[0].cause, Cause::NoEndpoint(Missing::Headless));
    });
}

#[test]
fn each_family_is_decided_alone() {
    let cluster_ips = vec!["fd00:96::1".parse().unwrap(), "10.96.0.1".parse().unwrap()];
    let dual = Service { cluster_ips, ..keyed(&format!("{Z},*")) };
    let nodes = vec![node("here", &[(Z, "a")]), node("far", &[(Z, "b")])];
    let cluster = Cluster::of(
        nodes,
        dual,
        vec![
            endpoint("10.0.0.1", "here"),
            endpoint("10.0.0.2", "far"),
            endpoint("fd00::1", "here").unready(),
            endpoint("fd00::2", "far"),
        ],
    );
    let routes = cluster.routes("here");
    assert_eq!(routes.len(), 2);
    assert_eq!(routes[0].frontends[0].1.address, "fd00:96::1".parse::<std::net::IpAddr>().unwrap());
    assert_eq!((addresses(&routes[0]), routes[0].tier), (vec!["[fd00::2]:9376".into()], Some(1)));
    assert_eq!((addresses(&routes[1]), routes[1].tier), (vec!["10.0.0.1:9376".into()], Some(0)));
}

#[test]
fn several_cluster_ips_of_a_family_are_one_route() {
    let cluster_ips = vec!["10.96.0.1".parse().unwrap(), "10.96.0.2".parse().unwrap()];
    let cluster =
        Cluster::of(vec![], Service { cluster_ips, ..service() }, vec![endpoint("10.0.0.1", "n")]);
    let routes = cluster.routes("n");
    assert_eq!((routes.len(), routes[0].frontends.len()), (1, 2));
}

#[test]
fn localities_are_node_zone_region_and_elsewhere() {
    let nodes = vec![
        node("here", &[(Z, "a"), (R, "x")]),
        node("zone", &[(Z, "a"), (R, "x")]),
        node("region", &[(Z, "b"), (R, "x")]),
        node("far", &[(Z, "c"), (R, "y")]),
        node("bare", &[]),
    ];
    let mut endpoints: Vec<_> = ["here", "zone", "region", "far", "bare", "unknown", ""]
        .iter()
        .zip(1..)
        .map(|(node, last)| endpoint(&format!("10.0.0.{last}"), node))
        .collect();
    endpoints.push(endpoint("10.0.0.8", "").carrying(&[(Z, "a")]));
    let cluster = Cluster::of(nodes, service(), endpoints);
    let far = |node| -> Vec<_> {
        cluster.routes(node)[0].endpoints.iter().map(|one| one.locality).collect()
    };
    use Locality::{Elsewhere, Node, Region, Zone};
    assert_eq!(far("here"), [Node, Zone, Region, Elsewhere, Elsewhere, Elsewhere, Elsewhere, Zone]);
    let mut unknown = [Elsewhere; 8];
    unknown[5] = Node;
    assert_eq!(far("unknown"), unknown, "an unknown node knows its own pods still");
    assert_eq!(far("bare")[4], Node);
    assert_eq!(far("bare")[5], Elsewhere, "two nodes without zones are in no zone together");
}

#[test]
fn five_thousand_endpoints_are_all_there() {
    let endpoints = (0..5_000)
        .map(|at| endpoint(&format!("10.{}.{}.1", at / 250, at % 250), &format!("n{}", at % 100)))
        .collect();
    let cluster = Cluster::of(vec![], service(), endpoints);
    assert_eq!(cluster.routes("n1")[0].endpoints.len(), 5_000);
}

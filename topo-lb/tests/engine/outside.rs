//! What clients outside of a node get at node ports, load balancer IPs and external IPs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use topo_lb_common::members::node_tag;
use topo_lb_core::cluster::{
    Clients, Exposure, Family, FrontendKind, LocalAddresses, NodePortAddresses, Service, State,
    Update,
};
use topo_lb_core::explain::{self, report_of_agent};
use topo_lb_core::peers::status::{Cause, PeerState, Status};
use topo_lb_core::topology::exposed::Exposing;
use topo_lb_core::topology::{self, Scope, Verdict};

use crate::made::{Asking, Cluster, H, Otherwise, R, Z, endpoint, id, keyed, node, service};

const LOAD_BALANCER: &str = "203.0.113.7";
const OWN: &str = "192.0.2.1";

/// `service` as a load balancer with node port 30080.
fn exposed(service: Service) -> Service {
    let exposure = Exposure {
        node_ports: vec![30_080],
        load_balancer_ips: vec![LOAD_BALANCER.parse().unwrap()],
        ..Exposure::default()
    };
    Service { exposure: Some(Arc::new(exposure)), ..service }
}

fn local(service: Service) -> Service {
    Service { external_local: true, ..exposed(service) }
}

fn with_external_keys(keys: &str, service: Service) -> Service {
    service.asking(|policy| policy.external_topology_keys = Some(keys.into()))
}

fn only_from(ranges: &[&str], service: Service) -> Service {
    let mut service = exposed(service);
    let ranges = ranges.iter().map(|range| range.parse().unwrap()).collect();
    Arc::make_mut(service.exposure.as_mut().unwrap()).source_ranges = Some(ranges);
    service
}

/// Nodes `here` and `near` in zone a, `far` in zone b of the same region, with an endpoint on each but
/// `here`; the last number of an endpoint's address is 1 on `here`, 2 on `near`, 3 on `far`.
fn cluster(service: Service, has_local: bool) -> Cluster {
    let of = |name: &'static str, zone: &'static str| node(name, &[(H, name), (Z, zone), (R, "r")]);
    let endpoints = [("10.0.0.1", "here"), ("10.0.0.2", "near"), ("10.0.0.3", "far")].into_iter();
    let endpoints = endpoints.filter(|(_, node)| has_local || *node != "here");
    Cluster::of(
        vec![of("here", "a"), of("near", "a"), of("far", "b")],
        service,
        endpoints.map(|(address, node)| endpoint(address, node)).collect(),
    )
}

/// As the node `here` with its own address knows it.
fn state(cluster: &Cluster) -> State {
    let mut state = cluster.state("here");
    let own = OWN.parse().unwrap();
    let by_device = BTreeMap::from([(own, "eth0".into())]);
    let _ = state
        .apply(Update::LocalAddresses(LocalAddresses { by_device, primary: vec![own] }), "here");
    state
}

/// What clients get at a frontend of a kind, as text: the last numbers of the endpoints, `refused`,
/// `dropped`, or `nothing` if it is left to the network.
fn got(state: &State, kind: FrontendKind, wanted: Clients) -> String {
    got_with(&Exposing { outside: true, ..Exposing::default() }, state, kind, wanted)
}

fn got_with(exposing: &Exposing, state: &State, kind: FrontendKind, wanted: Clients) -> String {
    let routes = topology::routes(state, "here", Scope::All, Some(exposing), &id("svc"));
    let by = |clients| {
        routes.iter().find(|route| {
            let is_it = |(own, frontend): &(FrontendKind, topo_lb_core::cluster::Frontend)| {
                *own == kind && frontend.clients == clients && !frontend.address.is_loopback()
            };
            route.frontends.iter().any(is_it)
        })
    };
    // As the programs look up: clients outside first their own entry, then the one for all.
    let found = match wanted {
        Clients::Outside => by(Clients::Outside).or_else(|| by(Clients::Anywhere)),
        Clients::Anywhere | Clients::Steered => by(Clients::Anywhere),
        Clients::Peers => by(Clients::Peers),
    };
    match found {
        None => "nothing".to_owned(),
        Some(route) if route.verdict == Verdict::Refuse && route.drops => "dropped".to_owned(),
        Some(route) if route.verdict == Verdict::Refuse => "refused".to_owned(),
        Some(route) => {
            let how = if route.consistent { "consistently " } else { "" };
            let last = |text: String| text.rsplit('.').next().map(str::to_owned);
            let all = route.endpoints.iter();
            let all: String = all.filter_map(|one| last(one.address().ip().to_string())).collect();
            how.to_owned() + &all
        }
    }
}

/// At the node port: from outside, from this node. The load balancer IP gives the same.
fn at_node_port(service: Service, has_local: bool) -> [String; 2] {
    let state = state(&cluster(service, has_local));
    let at = |kind| [Clients::Outside, Clients::Anywhere].map(|who| got(&state, kind, who));
    assert_eq!(at(FrontendKind::NodePort), at(FrontendKind::LoadBalancerIp));
    at(FrontendKind::NodePort)
}

#[test]
fn external_traffic_policy_holds_for_clients_outside_alone() {
    for (service, has_local, outside, inside) in [
        (exposed(service()), true, "123", "123"),
        (exposed(service()), false, "23", "23"),
        // kube-proxy: the short cut of clients of the node leads to the endpoints of `Cluster`.
        (local(service()), true, "1", "123"),
        (local(service()), false, "dropped", "23"),
    ] {
        assert_eq!(at_node_port(service, has_local), [outside, inside]);
    }
}

#[test]
fn without_an_endpoint_anywhere_local_refuses_and_does_not_drop() {
    let empty = Cluster::of(vec![node("here", &[(H, "here")])], local(service()), vec![]);
    let state = state(&empty);
    assert_eq!(got(&state, FrontendKind::NodePort, Clients::Outside), "refused");
}

#[test]
fn a_terminating_endpoint_here_stands_in_for_local() {
    let mut cluster = cluster(local(service()), true);
    for endpoint in &mut cluster.slices[0].endpoints {
        if &*endpoint.node().unwrap().clone() == "here" {
            *endpoint = endpoint.clone().draining();
        }
    }
    let state = state(&cluster);
    assert_eq!(got(&state, FrontendKind::NodePort, Clients::Outside), "1");
    assert_eq!(got(&state, FrontendKind::NodePort, Clients::Anywhere), "23");
}

#[test]
fn topology_keys_hold_outside_with_the_dialled_node_s_labels() {
    for (service, has_local, outside, inside) in [
        (exposed(keyed(Z)), false, "2", "2"),
        (exposed(keyed(H)), false, "refused", "refused"),
        (exposed(keyed(&format!("{H},*"))), true, "1", "1"),
        // Kubernetes 1.17 forbids the two together: the keys are ignored.
        (local(keyed(Z)), true, "1", "123"),
    ] {
        assert_eq!(at_node_port(service, has_local), [outside, inside]);
    }
}

#[test]
fn external_topology_keys_are_the_outside_s_own_waterfall() {
    for (service, has_local, outside, inside) in [
        (exposed(with_external_keys(Z, service())), true, "12", "123"),
        (exposed(with_external_keys(H, keyed(Z))), false, "refused", "2"),
        (exposed(with_external_keys("*", keyed(H))), false, "23", "refused"),
        // In place of externalTrafficPolicy, whose silence stays.
        (local(with_external_keys(H, service())), true, "1", "123"),
        (local(with_external_keys(H, service())), false, "dropped", "23"),
        (local(with_external_keys(&format!("{H},{Z}"), service())), false, "2", "23"),
        // An invalid one is ignored.
        (local(with_external_keys("a b", service())), true, "1", "123"),
    ] {
        assert_eq!(at_node_port(service, has_local), [outside, inside]);
    }
}

#[test]
fn source_ranges_limit_load_balancer_ips_of_their_family_alone() {
    let both = |service: Service| {
        let state = state(&cluster(service, true));
        [FrontendKind::LoadBalancerIp, FrontendKind::NodePort]
            .map(|kind| [Clients::Outside, Clients::Anywhere].map(|who| got(&state, kind, who)))
    };
    // The hooks do not know the source: the network decides for clients of this node.
    let limited = [["123", "nothing"], ["123", "123"]];
    assert_eq!(both(only_from(&["10.0.0.0/8"], service())), limited);
    assert_eq!(both(only_from(&["fd00::/8"], service())), limited);
    let open = [["123", "123"], ["123", "123"]];
    assert_eq!(both(only_from(&["10.0.0.0/8", "0.0.0.0/0"], service())), open);
    let state = state(&cluster(only_from(&["10.0.0.0/8", "::/0"], service()), true));
    let exposing = Exposing { outside: true, ..Exposing::default() };
    let routes = topology::routes(&state, "here", Scope::All, Some(&exposing), &id("svc"));
    let ranges: Vec<_> = routes.iter().filter_map(|route| route.source_ranges.clone()).collect();
    assert_eq!(ranges.len(), 1, "one route has ranges");
    assert_eq!(ranges[0].len(), 2);
}

#[test]
fn without_the_outside_there_are_no_entries_for_it() {
    let state = state(&cluster(local(service()), true));
    let routes =
        topology::routes(&state, "here", Scope::All, Some(&Exposing::default()), &id("svc"));
    let mut frontends = routes.iter().flat_map(|route| &route.frontends);
    assert!(frontends.all(|(_, frontend)| frontend.clients == Clients::Anywhere));
}

/// What an agent with `--direct-return auto` serves.
const DIRECT: Exposing = Exposing {
    node_ports: NodePortAddresses::Primary,
    external_ips: Vec::new(),
    outside: true,
    direct_return: true,
};

/// From outside, from this node, and from other nodes, at the load balancer IP and at the node port.
fn with_direct_return(service: Service, has_local: bool) -> [[String; 3]; 2] {
    let state = state(&cluster(service, has_local));
    let who = [Clients::Outside, Clients::Anywhere, Clients::Peers];
    [FrontendKind::LoadBalancerIp, FrontendKind::NodePort]
        .map(|kind| who.map(|who| got_with(&DIRECT, &state, kind, who)))
}

fn saying(direct_return: Option<&str>, choice: Option<&str>, service: Service) -> Service {
    service.asking(|policy| {
        policy.direct_return = direct_return.map(Into::into);
        policy.choice = choice.map(Into::into);
    })
}

#[test]
fn with_direct_return_clients_outside_choose_consistently_and_other_nodes_get_what_is_here() {
    let none = "nothing";
    let without = [["123", "123", none], ["123", "123", none]];
    for (service, has_local, load_balancer, node_port) in [
        (service(), true, ["consistently 123", "123", "1"], ["123", "123", none]),
        (service(), false, ["consistently 23", "23", "refused"], ["23", "23", none]),
        // The first node follows the policy.
        (keyed(Z), false, ["consistently 2", "2", "refused"], ["2", "2", none]),
        (
            keyed("example.com/none"),
            true,
            ["refused", "refused", "1"],
            ["refused", "refused", none],
        ),
        (saying(Some("false"), None, service()), true, without[0], without[1]),
        (saying(Some("no"), None, service()), true, ["consistently 123", "123", "1"], without[1]),
        (saying(None, Some("random"), service()), true, ["123", "123", "1"], without[1]),
        // What is said holds at node ports, too.
        (
            saying(Some("false"), Some("consistent"), service()),
            true,
            ["consistently 123", "123", none],
            ["consistently 123", "123", none],
        ),
        (
            saying(None, Some("consistent"), service()),
            true,
            ["consistently 123", "123", "1"],
            ["consistently 123", "123", none],
        ),
        // The outside's own keys have one row for all.
        (
            with_external_keys(Z, service()),
            true,
            ["consistently 12", "123", "1"],
            ["consistently 12", "123", none],
        ),
    ] {
        let got = with_direct_return(exposed(service.clone()), has_local);
        assert_eq!(got, [load_balancer, node_port], "{:?}", service.policy);
    }
    let of_local = [["1", "123", none], ["1", "123", none]];
    assert_eq!(with_direct_return(local(service()), true), of_local);
    let limited = with_direct_return(only_from(&["10.0.0.0/8"], service()), true);
    assert_eq!(limited, [["consistently 123", none, "1"], without[1]]);
}

#[test]
fn routes_of_direct_return_name_the_nodes_of_endpoints_elsewhere_and_keep_the_rest() {
    let tag = |node: &str| node_tag(node.as_bytes());
    let at = |last: u8| SocketAddr::from(([10, 0, 0, last], 9_376));
    let sticky = Service { affinity_seconds: Some(60), ..service() };
    let weighted = sticky.asking(|policy| policy.weights = Some("label:example.com/w".into()));
    let limited = only_from(&["10.0.0.0/8"], weighted);
    let routes = |service: Service| {
        let state = state(&cluster(service, true));
        topology::routes(&state, "here", Scope::All, Some(&DIRECT), &id("svc"))
    };
    let all = routes(limited.clone());
    assert_eq!(all.len(), 3, "clients anywhere, outside, and other nodes");
    for route in &all {
        let for_peers = route.frontends[0].1.clients == Clients::Peers;
        assert_eq!(*route.nodes, [(at(2), tag("near")), (at(3), tag("far"))]);
        assert_eq!(route.affinity_seconds, Some(60));
        assert!(!route.strict && !route.drops);
        assert_eq!(route.source_ranges.is_some(), route.frontends[0].1.clients == Clients::Outside);
        assert_eq!(route.endpoints.len(), if for_peers { 1 } else { 3 });
    }
    for opted_out in [saying(Some("false"), None, limited), local(service())] {
        assert!(routes(opted_out).iter().all(|route| route.nodes.is_empty()));
    }
}

#[test]
fn explain_says_whether_a_service_has_direct_return_and_why_not() {
    const YES: &str = "yes; connections to the node port get source NAT";
    let said = |service: Service, exposing: &Exposing| {
        let state = state(&cluster(service, true));
        let report =
            report_of_agent(&state, "here", Scope::All, &[], &BTreeMap::new(), exposing, &[]);
        let exposed = report.services[0].exposed.clone().unwrap();
        (exposed.direct_return.unwrap(), exposed.choice.unwrap_or("random"))
    };
    let off = Exposing { direct_return: false, ..DIRECT };
    let spilling = keyed(&format!("{Z},*")).asking(|policy| policy.spill = Some("10%".into()));
    for (service, exposing, direct_return, choice) in [
        (service(), &DIRECT, YES, "consistent"),
        (service(), &off, "no: --direct-return is off", "random"),
        (
            saying(None, Some("consistent"), service()),
            &off,
            "no: --direct-return is off",
            "consistent",
        ),
        (
            saying(Some("false"), None, service()),
            &DIRECT,
            "no: topo-lb.io/direct-return says so",
            "random",
        ),
        (
            Service { external_local: true, ..service() },
            &DIRECT,
            "no: externalTrafficPolicy is Local",
            "random",
        ),
        (spilling, &DIRECT, YES, "random, as some connections spill"),
    ] {
        let said = said(exposed(service), exposing);
        assert_eq!((&*said.0, said.1), (direct_return, choice));
    }
}

/// The lines of explain about other nodes, and its JSON of them.
fn other_nodes(service: Service, peers: &[Status]) -> (Vec<String>, serde_json::Value) {
    let state = state(&cluster(exposed(service), true));
    let lack = BTreeMap::new();
    let report = report_of_agent(&state, "here", Scope::All, &[], &lack, &DIRECT, peers);
    let text = explain::table(&report, false);
    let lines = text.lines().filter_map(|line| line.strip_prefix("  to nodes  "));
    let exposed = serde_json::to_value(&report.services[0].exposed).unwrap();
    (lines.map(str::to_owned).collect(), exposed["otherNodes"].clone())
}

#[test]
fn explain_says_of_the_nodes_of_endpoints_whether_packets_are_sent_on_and_why_not() {
    let peer = |node: &str, state, why: Option<(Cause, &str)>| Status {
        node: node.into(),
        family: Family::V4,
        state,
        ethernet: None,
        reason: why.map(|(_, reason)| reason.to_owned()),
        cause: why.map(|(cause, _)| cause),
    };
    let silent = |node: &str, at: &str| {
        peer(node, PeerState::Unproved, Some((Cause::NoAnswer, &format!("nobody at {at}"))))
    };
    let proved = |node| peer(node, PeerState::Proved, None);
    for (peers, wanted) in [
        (vec![proved("near"), proved("far")], &["far, near: sent on"][..]),
        (
            vec![silent("far", "2"), proved("near")],
            &["near: sent on", "far: source NAT, as nobody at 2"],
        ),
        // Together, without what only one of them has.
        (
            vec![silent("far", "2"), silent("near", "3")],
            &["far, near: source NAT, as no agent answers at their next hops"],
        ),
        (
            vec![proved("far"), peer("near", PeerState::Asking, None)],
            &["far: sent on", "near: source NAT until it is proved"],
        ),
        // What is said of the other version of IP is another matter.
        (
            vec![Status { family: Family::V6, ..proved("far") }],
            &["far, near: source NAT until it is proved"],
        ),
    ] {
        assert_eq!(other_nodes(service(), &peers).0, wanted);
    }
    // Only nodes to which the policy lets connections go, and only while the Service takes part.
    let both = [proved("near"), proved("far")];
    assert_eq!(
        other_nodes(with_external_keys(&format!("{Z},*"), service()), &both).0,
        ["near: sent on"]
    );
    assert!(other_nodes(saying(Some("false"), None, service()), &both).0.is_empty());
    let wanted = serde_json::json!([
        {"nodes": ["near"], "state": "proved"},
        {"nodes": ["far"], "state": "unproved", "cause": "no-answer", "reason": "nobody at 2"},
    ]);
    let (_, json) = other_nodes(service(), &[silent("far", "2"), proved("near")]);
    assert_eq!(json, wanted);
}

//! What a change does to clients and endpoints.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proptest::test_runner::{Config, TestRunner};
use topo_lb_common::backend::Locality;
use topo_lb_common::selection::SPILL_ONE;
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{Endpoint, Family, Frontend, Node, Port, Service, ServiceId, State};
use topo_lb_core::topology::{self, Scope, Verdict};
use topo_lb_core::what_if::{self, Both, Figures, Group, Moved, Proxied, Report, ServicePort};

use crate::made::{
    Asking, Cluster, H, Otherwise, Z, endpoint, id, keyed, node, of_cluster, policy, service, slice,
};
use crate::random;

fn proxied(cluster: &Cluster) -> Proxied {
    Proxied::of(cluster.state(""), Scope::All)
}

fn asked() -> BTreeSet<ServiceId> {
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
fn nodes() -> Vec<Node> {
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

fn with(service: Service) -> Cluster {
    Cluster::of(nodes(), service, endpoints())
}

fn loads(port: &ServicePort<'_>) -> Vec<(f64, f64, Option<f64>)> {
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

/// What nodes with one value of the label get.
#[derive(Default)]
struct ByHand {
    nodes: usize,
    refused: usize,
    staying: f64,
}

type Loads = BTreeMap<SocketAddr, f64>;

/// What becomes of the bytes of one node, in shares of 1: out of its group, and without an endpoint.
type Fates = BTreeMap<String, (f64, f64)>;

/// Groups and loads, computed node by node without grouping nodes.
fn by_hand(
    state: &State,
    label: &str,
    family: Family,
    place: usize,
    weight: &impl Fn(&str) -> f64,
) -> (BTreeMap<Option<String>, ByHand>, Loads, Fates) {
    let (mut groups, mut loads) = (BTreeMap::<_, ByHand>::new(), Loads::new());
    let mut fates = Fates::new();
    let service = state.service(&id("svc")).unwrap();
    let sites = topology::sites(state, service, &service.ports[place], family);
    let value_of = |address| {
        let (_, site) = sites.iter().find(|(own, _)| *own == address).unwrap();
        site.label(label).ok().map(str::to_owned)
    };
    for (node, labels) in state.nodes() {
        let value = labels.get(label).map(ToString::to_string);
        let group = groups.entry(value.clone()).or_default();
        group.nodes += 1;
        for route in topology::routes(state, node, Scope::All, None, &id("svc")) {
            let is_own = |frontend: &Frontend| Family::of(frontend.address) == family;
            if route.place != place || !route.frontends.iter().all(|(_, it)| is_own(it)) {
                continue;
            }
            group.refused += usize::from(route.verdict == Verdict::Refuse);
            let fate = fates.entry(node.to_owned()).or_default();
            fate.1 = if route.verdict == Verdict::Refuse { 1.0 } else { 0.0 };
            let spilled = f64::from(route.spill) / f64::from(SPILL_ONE);
            let sum: u16 = route.parts.iter().map(|part| part.weight).sum();
            let parts = route.parts.iter();
            let parts = parts.map(|it| (&it.endpoints, f64::from(it.weight) / f64::from(sum)));
            let tiers = [(&route.endpoints, 1.0 - spilled), (&route.wider, spilled)];
            let tiers = tiers.into_iter().filter(|_| route.parts.is_empty());
            for (tier, share) in tiers.chain(parts) {
                for one in tier {
                    let each = share / tier.len() as f64;
                    *loads.entry(one.address()).or_default() += each * weight(node);
                    let is_near = value.is_some() && value_of(one.address()) == value;
                    if is_near || one.locality == Locality::Node {
                        group.staying += each;
                    } else {
                        fate.0 += each;
                    }
                }
            }
        }
    }
    (groups, loads, fates)
}

/// Bytes to one port of the Service, as an agent's metrics have them.
fn moved(node: Option<&str>, port: &str, is_near: bool, bytes: f64) -> Moved {
    let (node, port) = (node.map(Into::into), port.into());
    Moved { node, service: id("svc"), port, is_near, is_direct: false, bytes }
}

/// What agents call a port.
fn label_of(port: &Port) -> String {
    match &*port.name {
        "" => port.port.to_string(),
        name => name.to_owned(),
    }
}

/// Figures of these nodes: each has moved so many bytes to each port of the Service.
fn figures(state: &State, bytes: &BTreeMap<String, u32>) -> Figures {
    let ports = &state.service(&id("svc")).unwrap().ports;
    let one = |(node, bytes): (&String, &u32)| {
        let (node, bytes) = (node.clone(), f64::from(*bytes));
        ports.iter().map(move |port| moved(Some(&node), &label_of(port), true, bytes))
    };
    Figures::since_start(bytes.iter().flat_map(one), Vec::new())
}

fn assert_near(one: f64, other: f64) {
    assert!((one - other).abs() < 1e-4, "{one} is not {other}");
}

/// One side of a change.
#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

impl Side {
    fn of<T>(self, both: &Both<T>) -> &T {
        match self {
            Self::Before => &both.before,
            Self::After => &both.after,
        }
    }
}

/// Whether a side of `port` is what [`by_hand`] says of the cluster of that side, `state`.
fn agrees(
    port: &ServicePort<'_>,
    side: Side,
    state: &State,
    key: &str,
    bytes: &BTreeMap<String, u32>,
    counted: &BTreeSet<String>,
) {
    let own = &state.service(&id("svc")).unwrap().ports;
    let place = own.iter().position(|one| one.port == port.port.port).unwrap();
    let is_own = |family: &Family| port.family == <&str>::from(*family);
    let family = Family::BOTH.into_iter().find(is_own).unwrap();
    // Figures are of the ports before the change, by name.
    let is_counted = port.port.protocol == "TCP" && counted.contains(&label_of(&own[place]));
    let total: f64 = bytes.values().copied().map(f64::from).sum();
    let all = state.nodes().count() as f64;
    let gone = bytes.iter().filter(|(node, _)| state.node(node).is_none());
    let spread = gone.map(|(_, bytes)| f64::from(*bytes)).sum::<f64>() / all;
    // A node is as many clients as it has moved bytes of all.
    let weight = |node: &str| match is_counted && total > 0.0 {
        true => (bytes.get(node).map_or(0.0, |own| f64::from(*own)) + spread) * all / total,
        false => 1.0,
    };
    let (groups, loads, fates) = by_hand(state, key, family, place, &weight);
    if let Some(counted) = &port.bytes {
        // The bytes of a node that is gone follow the connections of all.
        let sum = |of: fn(&(f64, f64)) -> f64| -> f64 {
            let mean = fates.values().map(of).sum::<f64>() / fates.len().max(1) as f64;
            let share = |node| fates.get(node).map_or(mean, of);
            bytes.iter().map(|(node, bytes)| f64::from(*bytes) * share(node)).sum()
        };
        assert_near(counted.moved, bytes.values().copied().map(f64::from).sum());
        assert_near(*side.of(&counted.crossing), sum(|fate| fate.0));
        assert_near(*side.of(&counted.stopped), sum(|fate| fate.1));
    }

    let found = port.groups.iter().filter(|group| *side.of(&group.nodes) > 0);
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), groups.len());
    let refused: f64 = state
        .nodes()
        .map(|(node, _)| weight(node) * fates.get(node).map_or(0.0, |fate| fate.1))
        .sum();
    for (group, (value, by_hand)) in found.into_iter().zip(groups) {
        assert_eq!(group.value, value.as_deref());
        assert_eq!(*side.of(&group.nodes), by_hand.nodes);
        assert_eq!(*side.of(&group.refused), by_hand.refused);
        let served = by_hand.nodes - by_hand.refused;
        match side.of(&group.staying) {
            Some(share) => assert_near(*share * served as f64, by_hand.staying),
            None => assert_eq!(served, 0),
        }
    }

    for one in &port.endpoints {
        let load = loads.get(&SocketAddr::new(one.address, one.port));
        assert_near(*side.of(&one.load), load.copied().unwrap_or_default());
    }
    let there = |address: &SocketAddr| {
        port.endpoints.iter().any(|one| SocketAddr::new(one.address, one.port) == *address)
    };
    assert!(loads.keys().all(there), "{loads:?}");
    let sum = port.endpoints.iter().map(|one| *side.of(&one.load)).sum::<f64>();
    assert_near(sum, if loads.is_empty() { 0.0 } else { all - refused });
}

#[test]
fn a_node_is_as_many_clients_as_it_moves_bytes() {
    let near = |node, bytes| moved(Some(node), "http", true, bytes);
    // Of four nodes, a1 moves three quarters of all, and b1 the rest.
    let figures = Figures::since_start([near("a1", 300.0), near("b1", 100.0)], Vec::new());
    let (before, after) = (proxied(&with(service())), proxied(&with(keyed(&format!("{Z},*")))));
    let asked = asked();
    let report = what_if::compare(&before, &after, Z, &asked, Some(&figures));
    assert_eq!(loads(&report.services[0]), [(2.0, 3.0, Some(1.5)), (2.0, 1.0, Some(0.5))]);
    assert_eq!(report.services[0].busiest(), Both { before: Some(1.0), after: Some(1.5) });
}

#[test]
fn what_clients_dial_directly_is_not_moved_and_is_apart() {
    let near = |node, bytes| moved(Some(node), "http", true, bytes);
    let direct = Moved { is_direct: true, ..near("a1", 900.0) };
    let [all, keyed] = [with(service()), with(keyed(&format!("{Z},*")))].map(|it| proxied(&it));
    let figures = Figures::since_start([near("a1", 300.0), near("b1", 100.0), direct], Vec::new());
    let asked = asked();
    let report = what_if::compare(&all, &keyed, Z, &asked, Some(&figures));
    assert_eq!(report.totals.bytes.unwrap().moved, 400.0);
    // Nor does it make a node more clients.
    assert_eq!(loads(&report.services[0])[0], (2.0, 3.0, Some(1.5)));
    assert_eq!(report.bytes_direct, Some(900.0));
    let same = what_if::compare(&all, &all, Z, &asked, Some(&figures));
    assert_eq!(same.bytes_direct, Some(0.0), "nothing changes");
}

#[test]
fn bytes_of_a_node_that_nobody_names_follow_all_and_without_the_service_none_flow() {
    let figures = Figures::since_start([moved(None, "http", false, 400.0)], Vec::new());
    let mut without = with(service());
    without.services.clear();
    let [all, near, none] = [with(service()), with(keyed(Z)), without].map(|it| proxied(&it));
    let asked = asked();
    let bytes = |before, after, label| {
        let report = what_if::compare(before, after, label, &asked, Some(&figures));
        assert_eq!(report.services[0].bytes, report.totals.bytes);
        report.services[0].bytes.unwrap()
    };
    // Of four nodes, three reach both endpoints, one of them in their zone; after, one is refused.
    let strict = bytes(&all, &near, Z);
    assert_eq!((strict.moved, strict.crossed), (400.0, Some(400.0)));
    assert_eq!(strict.crossing, Both { before: 250.0, after: 0.0 });
    assert_eq!(strict.stopped, Both { before: 0.0, after: 100.0 });
    let gone = bytes(&all, &none, "rack");
    assert_eq!(gone.crossed, None, "zones are not what nodes are grouped by");
    assert_eq!(gone.stopped, Both { before: 0.0, after: 400.0 });
}

#[test]
fn bytes_are_of_the_port_s_name_before_and_of_the_family_that_changes() {
    let figures = Figures::since_start([moved(None, "http", false, 400.0)], Vec::new());
    let totals = |before: &Cluster, after: &Cluster| {
        let [before, after] = [before, after].map(proxied);
        what_if::compare(&before, &after, Z, &asked(), Some(&figures)).totals.bytes
    };
    let mut renamed = with(keyed(Z));
    renamed.services[0].ports[0].name = "web".into();
    assert_eq!(totals(&with(service()), &renamed).unwrap().moved, 400.0);
    assert_eq!(totals(&renamed, &with(service())), None, "http is not there yet");

    // Over IPv6 there is an endpoint in zone a, and then one in b.
    let dual = |node| {
        let mut cluster = with(keyed(&format!("{Z},*")));
        cluster.services[0].cluster_ips.push("fd00::1".parse().unwrap());
        cluster.slices.push(slice("svc-6", vec![endpoint("fd00::7", node)]));
        cluster
    };
    assert_eq!(totals(&dual("a1"), &dual("a1")), None);
    let bytes = totals(&dual("a1"), &dual("b1")).unwrap();
    // Of four nodes, two stay in a before, and one in b after.
    assert_eq!(bytes.crossing, Both { before: 200.0, after: 300.0 });
}

/// Of two random clusters with the same Service, both agree with [`by_hand`]: so grouping
/// changes nothing, and the loads sum to the number of nodes that are served.
#[test]
fn loads_are_those_of_each_node_alone_and_sum_to_the_served_nodes() {
    let config = Config { cases: 1_500, failure_persistence: None, ..Config::default() };
    let tapes = (random::tapes(280), random::tapes(280));
    let with_bytes = Cell::new(0);
    let result = TestRunner::new(config).run(&tapes, |(one, other)| {
        let [before, after] = [one, other].map(|tape| random::cluster_of_ours(&tape));
        let (before, after) = (proxied(&before), proxied(&after));
        let asked = asked();
        let nodes = before.state().nodes().zip(1..);
        let bytes: BTreeMap<_, _> = nodes.map(|((node, _), n)| (node.to_owned(), n * n)).collect();
        let figures = figures(before.state(), &bytes);
        let counted = before.state().service(&id("svc")).unwrap().ports.iter().map(label_of);
        let counted: BTreeSet<_> = counted.collect();
        for label in [Z, H, "rack"] {
            let report: Report<'_> =
                what_if::compare(&before, &after, label, &asked, Some(&figures));
            for port in &report.services {
                for (side, cluster) in [(Side::Before, &before), (Side::After, &after)] {
                    if side.of(&port.served).is_some() {
                        agrees(port, side, cluster.state(), label, &bytes, &counted);
                        with_bytes.set(with_bytes.get() + usize::from(port.bytes.is_some()));
                    }
                }
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(with_bytes.get() > 1_000, "only {} ports had figures", with_bytes.get());
}

#[test]
fn nothing_changes_from_a_cluster_to_itself() {
    let config = Config { cases: 1_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&random::tapes(280), |tape| {
        let (cluster, _) = random::cluster(&tape);
        let (before, after) = (proxied(&cluster), proxied(&cluster));
        let asked = asked();
        let report = what_if::compare(&before, &after, Z, &asked, None);
        assert!(report.services.iter().all(|port| !port.changes && !port.is_problem()));
        assert_eq!(report.totals.changed, 0);
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

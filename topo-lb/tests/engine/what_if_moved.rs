//! What a change does to bytes and loads, against a second implementation that goes node by node.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use proptest::test_runner::{Config, TestRunner};
use topo_lb_common::backend::Locality;
use topo_lb_common::selection::SPILL_ONE;
use topo_lb_core::cluster::{Family, Frontend, Port, REGION, Service, State};
use topo_lb_core::topology::direct::Direct;
use topo_lb_core::topology::{self, Scope, Verdict};
use topo_lb_core::what_if::{self, Both, Figures, Moved, Prices, Report, ServicePort};

use crate::made::{Asking as _, Cluster, H, Z, endpoint, id, keyed, node, service, slice};
use crate::random;
use crate::what_if::{asked, loads, proxied, with};

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
            if route.place != place
                || route.direct() != Direct::Allow
                || !route.frontends.iter().all(|(_, it)| is_own(it))
            {
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
    let locality = if is_near { Locality::Zone } else { Locality::Elsewhere };
    let (node, port) = (node.map(Into::into), port.into());
    Moved { node, service: id("svc"), port, locality, is_direct: false, bytes }
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

    let refuses_direct = |(node, _): &(&str, _)| {
        topology::routes(state, node, Scope::All, None, &id("svc")).iter().any(|route| {
            let is_it = |it: &Frontend| Family::of(it.address) == family;
            route.direct() == Direct::Refuse
                && route.place == place
                && route.frontends.iter().all(|(_, it)| is_it(it))
        })
    };
    assert_eq!(*side.of(&port.refused_direct), state.nodes().filter(refuses_direct).count());
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
fn a_change_costs_what_leaves_zone_and_region_and_what_stays_the_same_costs_the_same() {
    let prices = Prices { zone: 0.01, region: 0.02 };
    let gb = |is_near, count| moved(Some("a1"), "http", is_near, count * 1e9);
    // Half of what a1 moves is expected to leave its zone; three quarters of it did.
    let figures = Figures::over("15d".into(), [gb(true, 100.0), gb(false, 300.0)]);
    let in_regions = |service: Service, regions: bool| {
        let labels = |name, zone, region| {
            let region = regions.then_some((REGION, region));
            [(H, name), (Z, zone)].into_iter().chain(region).collect::<Vec<_>>()
        };
        let nodes = [("a1", "a", "r1"), ("b1", "b", "r2")];
        let nodes = nodes.map(|(name, zone, region)| node(name, &labels(name, zone, region)));
        let endpoints = vec![endpoint("10.0.0.1", "a1"), endpoint("10.0.0.2", "b1")];
        proxied(&Cluster::of(nodes.into(), service, endpoints))
    };
    let strict = || keyed(Z);
    let refusing = || keyed(Z).asking(|policy| policy.direct = Some("refuse".into()));
    for (before, after, regions, money) in [
        (service(), strict(), false, (3.0, 0.0)),
        (service(), strict(), true, (6.0, 0.0)),
        // A strict policy lets none of it leave the zone: that is of before it.
        (strict(), refusing(), true, (0.0, 0.0)),
        (strict(), service(), true, (0.0, 4.0)),
    ] {
        let (before, after) = (in_regions(before, regions), in_regions(after, regions));
        let cost = what_if::cost(&before, &after, &figures, prices).expect("bytes are known");
        assert_eq!(cost.months, Some(2.0));
        assert_near(cost.money.before, money.0);
        assert_near(cost.money.after, money.1);
    }
    // All endpoints are on one node, so the keys change nothing, but for what floating-point numbers lose.
    let nodes = [("a1", "a", "r1"), ("a2", "a", "r1"), ("b1", "b", "r2")]
        .map(|(name, zone, region)| node(name, &[(H, name), (Z, zone), (REGION, region)]));
    let endpoints: Vec<_> = (1..=3).map(|host| endpoint(&format!("10.0.0.{host}"), "a1")).collect();
    let [one, other] = [service(), keyed(&format!("{Z},*"))]
        .map(|it| proxied(&Cluster::of(nodes.clone().into(), it, endpoints.clone())));
    let all = [("a2", true, 7.0), ("a2", false, 0.1), ("b1", false, 900.0), ("b1", true, 3.3)];
    let all = all.map(|(node, is_near, count)| moved(Some(node), "http", is_near, count * 1e9));
    let figures = Figures::since_start(all, Vec::new());
    let cost = what_if::cost(&one, &other, &figures, prices).expect("bytes are known").money;
    assert_eq!(cost.before, cost.after);
    let same = in_regions(service(), true);
    assert_eq!(what_if::cost(&same, &same, &figures, prices), None, "nothing changes");
}

#[test]
fn what_clients_dial_directly_is_not_moved_and_is_apart() {
    let near = |node, bytes| moved(Some(node), "http", true, bytes);
    let direct = Moved { is_direct: true, locality: Locality::Region, ..near("a1", 900.0) };
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

//! What is advised saves what `plan` says, keeps the bound, and saves no less with a larger one.

use std::cell::Cell;
use std::collections::BTreeSet;

use proptest::test_runner::{Config, TestRunner};
use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::{Change, Port, ServiceId, State, Update};
use topo_lb_core::topology::Scope;
use topo_lb_core::what_if::{
    self, Advice, Asked, Both, Figures, Moved, Prices, Proxied, Setting, advise,
};

use crate::made::{Asking, Cluster, H, R, Z, endpoint, id, keyed, node, service};
use crate::random;

const PRICES: Prices = Prices { zone: 0.01, region: 0.03 };

fn moved(service: &ServiceId, node: &str, port: &str, locality: Locality, bytes: f64) -> Moved {
    let service = service.clone();
    let (node, port) = (Some(node.into()), port.into());
    Moved { node, service, port, locality, is_direct: false, bytes }
}

fn asked(figures: &Figures, max_load: f64) -> Asked<'_> {
    Asked { scope: Scope::OptIn, figures, prices: PRICES, max_load, min_saving: 0.0, chosen: &[] }
}

/// Two zones of one region, and one of another, with a node each.
fn three(service: topo_lb_core::cluster::Service, endpoints: &[(&str, &str)]) -> State {
    let nodes = [("a1", "a", "r"), ("b1", "b", "r"), ("c1", "c", "far")]
        .map(|(name, zone, region)| node(name, &[(H, name), (Z, zone), (R, region)]));
    let endpoints = endpoints.iter().map(|(address, node)| endpoint(address, node)).collect();
    Cluster::of(nodes.into(), service, endpoints).state("")
}

/// What each node's clients moved, to an endpoint in each zone alike.
fn figures(bytes: &[(&str, f64)]) -> Figures {
    let all = bytes.iter().flat_map(|&(node, bytes)| {
        let second = if node == "c1" { Locality::Elsewhere } else { Locality::Region };
        [Locality::Zone, second, Locality::Elsewhere]
            .map(|locality| moved(&id("svc"), node, "http", locality, bytes / 3.0))
    });
    Figures::over("1d".into(), all)
}

const EACH: [(&str, &str); 3] = [("10.0.0.1", "a1"), ("10.0.0.2", "b1"), ("10.0.0.3", "c1")];

fn settings(advice: &Advice) -> Vec<&str> {
    advice.services.iter().flat_map(|one| &one.settings).map(String::as_str).collect()
}

#[test]
fn what_clients_dial_directly_is_no_demand_and_is_told() {
    let mut figures = figures(&[("a1", 3e9), ("b1", 3e9), ("c1", 3e9)]);
    let state = three(service(), &EACH);
    let without = advise(&state, &asked(&figures, 1.0));
    figures.extend([Moved {
        is_direct: true,
        ..moved(&id("svc"), "a1", "http", Locality::Region, 8e9)
    }]);
    let with = advise(&state, &asked(&figures, 1.0));
    assert_eq!((with.money, &with.services), (without.money, &without.services));
    assert_eq!((without.direct, with.direct), (0.0, 8e9));
    // The figures are of a day, and the table of a month.
    let said = what_if::advice_table(&with, false);
    assert!(
        said.contains("\nA month, clients of default/svc moved 240 GB more out of their zone, to"),
        "{said}"
    );
    // A Service of which nothing else is known is not one without bytes.
    let only = Moved { is_direct: true, ..moved(&id("svc"), "a1", "http", Locality::Region, 8e9) };
    let only = advise(&state, &asked(&Figures::since_start([only], Vec::new()), 1.0));
    assert_eq!((only.uncounted, only.direct), (0, 8e9));
    // As are the probes of a kubelet.
    let probes = Moved { is_direct: true, ..moved(&id("svc"), "a1", "http", Locality::Zone, 8e9) };
    let probes = advise(&state, &asked(&Figures::since_start([probes], Vec::new()), 1.0));
    assert_eq!((probes.uncounted, probes.direct, &probes.direct_services[..]), (0, 0.0, &[][..]));
}

#[test]
fn endpoints_in_each_zone_cost_nothing_with_a_policy_and_it_is_a_command() {
    let figures = figures(&[("a1", 3e9), ("b1", 3e9), ("c1", 3e9)]);
    let advice = advise(&three(service(), &EACH), &asked(&figures, 1.0));
    let keys = format!("default/svc=topo-lb.io/topology-keys:{Z},*");
    assert_eq!(settings(&advice), [keys]);
    let one = &advice.services[0];
    let command = format!(
        "kubectl annotate service -n default svc --overwrite 'topo-lb.io/topology-keys={Z},*'"
    );
    assert_eq!(one.command, command);
    assert_eq!((one.bytes.crossed, one.bytes.crossing.after), (Some(6e9), 0.0));
    // Of 6 GB, 4 have left their region: c1's 2, and half of the others' 4.
    let rounded = |money: f64| (money * 1e6).round() / 1e6;
    assert_eq!(rounded(one.money.before), rounded(4.0 * 0.03 + 2.0 * 0.01));
    assert_eq!((one.money.after, one.refused), (0.0, 0));
    assert_eq!(one.load, Both { before: Some(1.0), after: Some(1.0) });
    assert_eq!(advice.months, Some(30.0));
    assert_eq!(advice.money, one.money);
    let text = what_if::advice_table(&advice, false);
    assert!(text.contains(&command) && text.contains("180 GB → 0 B"), "{text}");
    assert!(text.contains("$4.20 → $0.00"), "{text}");
    // It is a month's money.
    for (min_saving, is_advised) in [(4.2, true), (4.21, false)] {
        let least = Asked { min_saving, ..asked(&figures, 1.0) };
        let advice = advise(&three(service(), &EACH), &least);
        assert_eq!((advice.services.len() == 1, advice.left.is_empty()), (is_advised, is_advised));
        assert_eq!(advice.money.before, one.money.before);
    }
}

#[test]
fn an_endpoint_that_would_get_too_much_is_spared_by_spill_or_the_service_is_left() {
    // Half of all clients are in zone a, so without spill its endpoint gets half of all.
    let figures = figures(&[("a1", 6e9), ("b1", 3e9), ("c1", 3e9)]);
    let state = three(service(), &EACH);
    let with = |max_load| advise(&state, &asked(&figures, max_load));
    assert_eq!(settings(&with(1.5)).len(), 1, "no spill");
    let spilled = with(1.3);
    assert!(settings(&spilled)[1].contains("/spill:"), "{spilled:?}");
    assert!(spilled.services[0].load.after.is_some_and(|load| load <= 1.3), "{spilled:?}");
    let left = with(1.0);
    assert!(left.services.is_empty(), "{left:?}");
    assert!(left.left[0].why.contains("loads an endpoint ×1."), "{left:?}");
    assert_eq!(left.money.before, left.money.after);
}

#[test]
fn bytes_of_before_a_policy_are_no_reason_for_another_one() {
    let near = |node| moved(&id("svc"), node, "http", Locality::Zone, 9e9);
    let old = figures(&[("a1", 3e9), ("b1", 3e9), ("c1", 3e9)]);
    let new = Figures::over("1d".into(), ["a1", "b1", "c1"].map(near));
    let state = three(keyed(&format!("{Z},*")), &EACH);
    let advice = advise(&state, &asked(&old, 1.5));
    assert!(advice.services.is_empty(), "{advice:?}");
    assert!(advice.left[0].why.contains("did so before"), "{advice:?}");
    assert_eq!((advice.left[0].money, advice.money), (0.0, Both::default()));
    // All bytes are of the policy.
    let advice = advise(&state, &asked(&new, 1.5));
    assert!(advice.services.is_empty() && advice.left.is_empty(), "{advice:?}");
    // Chance is no doubt: a tenth of what b1 and c1 moved has left their zone.
    let chance = [("b1", 1e9), ("c1", 1e9)]
        .map(|(node, bytes)| moved(&id("svc"), node, "http", Locality::Elsewhere, bytes));
    let advice = advise(&state, &asked(&new.and(Figures::over("1d".into(), chance)), 1.5));
    assert!(advice.services.is_empty() && advice.left.is_empty(), "{advice:?}");
}

#[test]
fn what_was_meant_is_kept() {
    let figures = figures(&[("a1", 6e9), ("b1", 3e9), ("c1", 3e9)]);
    let why = |service, wanted: &str| {
        let advice = advise(&three(service, &EACH), &asked(&figures, 9.0));
        assert!(advice.services.is_empty(), "{advice:?}");
        assert!(advice.left[0].why.contains(wanted), "{advice:?}");
    };
    why(keyed(H), "strict");
    why(service().asking(|policy| policy.handle = Some("false".into())), "handle");
    let mut local = service();
    local.internal_local = true;
    why(local, "internalTrafficPolicy");
    // Its own spill goes, in a way that `apply --server-side` can.
    let spilling = keyed(&format!("{Z},*")).asking(|policy| policy.spill = Some("50%".into()));
    // A third of the bytes has left its zone, as the policy lets it.
    let near = |node| moved(&id("svc"), node, "http", Locality::Node, 6e9);
    let figures = figures.and(Figures::over("1d".into(), ["a1", "b1", "c1"].map(near)));
    let advice = advise(&three(spilling, &EACH), &asked(&figures, 9.0));
    assert_eq!(settings(&advice)[1], "default/svc=topo-lb.io/spill:0%");
    let yaml = "apiVersion: v1\nkind: Service\nmetadata:\n  namespace: default\n  name: \"svc\"\n  \
                annotations:\n    topo-lb.io/spill: \"0%\"\n    topo-lb.io/topology-keys: \
                \"topology.kubernetes.io/zone,*\"\n";
    assert_eq!(advice.services[0].manifest(), yaml);
}

#[test]
fn a_zone_without_an_endpoint_stays_in_its_region() {
    let figures = figures(&[("a1", 3e9), ("b1", 3e9), ("c1", 3e9)]);
    let state = three(service(), &[("10.0.0.1", "a1"), ("10.0.0.3", "c1")]);
    let advice = advise(&state, &asked(&figures, 9.0));
    assert_eq!(settings(&advice), [format!("default/svc=topo-lb.io/topology-keys:{Z},{R},*")]);
    // b1's 3 GB leave their zone, and not their region.
    assert_eq!(advice.services[0].money.after, 3.0 * PRICES.zone);
}

#[test]
fn what_nobody_counted_is_counted() {
    let advice = advise(&three(service(), &EACH), &asked(&Figures::default(), 9.0));
    assert_eq!((advice.uncounted, advice.services.len(), advice.months), (1, 0, None));
}

/// `plan`'s own figures, with everything set that is advised.
fn planned(state: &State, advice: &Advice, figures: &Figures) -> f64 {
    let set: Vec<Setting> =
        settings(advice).iter().map(|text| text.parse().expect("a setting")).collect();
    let mut after = state.clone();
    what_if::apply(&mut after, &set).expect("settings");
    let [before, after] = [state.clone(), after].map(|state| Proxied::of(state, Scope::OptIn));
    // Also those of its ports that do not change.
    let asked: BTreeSet<ServiceId> = set.iter().map(|one| one.service().clone()).collect();
    let report = what_if::compare(&before, &after, Z, &asked, Some(figures));
    for one in &advice.services {
        let ports = report
            .services
            .iter()
            .filter(|it| it.namespace == one.namespace && it.name == one.name);
        let bytes: Vec<_> = ports.clone().filter_map(|port| port.bytes).collect();
        let sum = |of: fn(&what_if::Bytes) -> f64| bytes.iter().map(of).sum::<f64>();
        assert_eq!(sum(|it| it.crossing.after), one.bytes.crossing.after);
        assert_eq!(sum(|it| it.crossing.before), one.bytes.crossing.before);
        let busiest = ports.filter_map(|port| port.busiest().after).fold(0.0, f64::max);
        assert!((busiest - one.load.after.unwrap_or_default()).abs() < 1e-9);
        assert!(one.refused == 0 && one.money.after < one.money.before);
    }
    report.totals.bytes.map_or(0.0, |bytes| bytes.crossing.after)
}

#[test]
fn a_larger_bound_saves_no_less_and_plan_says_the_same() {
    let config = Config { cases: 400, failure_persistence: None, ..Config::default() };
    let advised = Cell::new(0);
    let result = TestRunner::new(config).run(&random::tapes(280), |tape| {
        let (cluster, _) = random::cluster(&tape);
        let mut state = cluster.state("");
        let Some(mut service) = state.service(&id("svc")).cloned() else { return Ok(()) };
        let label = |port: &Port| match &*port.name {
            "" => port.port.to_string(),
            name => name.to_owned(),
        };
        // Most random policies are strict, or let less leave the zone than these bytes: those are kept.
        if tape.first().is_some_and(|it| it % 8 != 0) {
            service.policy = std::sync::Arc::default();
            let _ = state.apply(Update::Service(Change::Applied(service.clone())), "");
        }
        let nodes: Vec<String> = state.nodes().map(|(name, _)| name.to_owned()).collect();
        let of_node = |(place, node): (usize, &String)| {
            let bytes = 1e9 * ((place * place) % 7) as f64;
            let ports: Vec<_> = service.ports.iter().map(label).collect();
            let node = node.clone();
            ports.into_iter().flat_map(move |port| {
                [Locality::Zone, Locality::Elsewhere]
                    .map(|locality| moved(&id("svc"), &node, &port, locality, bytes))
            })
        };
        let figures = Figures::since_start(nodes.iter().enumerate().flat_map(of_node), Vec::new());
        let mut least = f64::NEG_INFINITY;
        for max_load in [1.0, 1.1, 1.3, 1.7, 2.5, 9.0] {
            let advice = advise(&state, &asked(&figures, max_load));
            let saved = advice.money.before - advice.money.after;
            assert!(saved >= least - 1e-9, "{saved} with {max_load}, {least} with less");
            least = least.max(saved);
            for one in &advice.services {
                assert!(
                    one.load.after.is_none_or(|load| load <= max_load * (1.0 + 1e-6)),
                    "{one:?}"
                );
                advised.set(advised.get() + 1);
            }
            planned(&state, &advice, &figures);
        }
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    assert!(advised.get() > 50, "only {} were advised", advised.get());
}

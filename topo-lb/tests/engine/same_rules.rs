//! The engine and the naive implementation agree on random clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::test_runner::{Config, TestRunner};
use topo_lb::plan::apportionment::{self, Rows};
use topo_lb::topology::candidate::Stock;
use topo_lb::topology::decision::{Choice, Status};
use topo_lb::topology::{self, Chosen, Route, Scope, Verdict};
use topo_lb_common::selection::SPILL_ONE;

use crate::made::id;
use crate::{naive, random};

/// Cases of the property below; `PROPTEST_CASES` overrides the number.
const CASES: u32 = 100_000;

/// Counts the kinds of cases: the test needs a generator that reaches all of them.
#[derive(Default)]
struct Seen {
    verdicts: [AtomicU32; 3],
    sources: [AtomicU32; 8],
    errors: AtomicU32,
    tiers: [AtomicU32; 3],
    partly: AtomicU32,
    standing_in: AtomicU32,
    spilling: AtomicU32,
    crowded: [AtomicU32; 2],
    too_few: AtomicU32,
    weighed: AtomicU32,
    weightless: AtomicU32,
    on_trial: [AtomicU32; 2],
}

fn count(counter: &AtomicU32) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn the_engine_agrees_with_a_naive_reading_of_the_rules() {
    let cases = std::env::var("PROPTEST_CASES").map_or(CASES, |text| text.parse().unwrap());
    let seen = Seen::default();
    let workers = std::thread::available_parallelism().map_or(1, NonZero::get) as u32;
    let config =
        Config { cases: cases.div_ceil(workers), failure_persistence: None, ..Config::default() };
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                let result = TestRunner::new(config.clone()).run(&random::tapes(330), |tape| {
                    agree(&tape, &seen);
                    Ok(())
                });
                result.unwrap_or_else(|error| panic!("{error}"));
            });
        }
    });
    if cases >= CASES {
        let rarest = cases / 200;
        for (what, counts) in [
            ("verdicts", &seen.verdicts[..]),
            ("sources", &seen.sources),
            ("tiers", &seen.tiers),
            ("errors", std::slice::from_ref(&seen.errors)),
            ("some but not all chosen", std::slice::from_ref(&seen.partly)),
            ("terminating endpoints chosen", std::slice::from_ref(&seen.standing_in)),
            ("some spill", std::slice::from_ref(&seen.spilling)),
            ("a crowded tier", &seen.crowded),
            ("a tier has too few", std::slice::from_ref(&seen.too_few)),
            ("several parts by weight", std::slice::from_ref(&seen.weighed)),
            ("an object on trial", &seen.on_trial),
            ("an endpoint without a weight", std::slice::from_ref(&seen.weightless)),
        ] {
            for (index, count) in
                counts.iter().map(|count| count.load(Ordering::Relaxed)).enumerate()
            {
                assert!(count > rarest, "{what} {index}: {count} of {cases} cases");
            }
        }
    }
}

fn agree(tape: &[u8], seen: &Seen) {
    let (cluster, this_node) = random::cluster(tape);
    let state = cluster.state(this_node);
    let service = &cluster.services[0];
    let opted_in = tape.len().is_multiple_of(4);
    let scope = if opted_in { Scope::OptIn } else { Scope::All };
    let mut routes = topology::routes(&state, this_node, scope, None, &id("svc")).into_iter();
    let mut decisions = topology::decide(&state, this_node, scope, &id("svc")).into_iter();
    if service.skipped.is_some() {
        assert!(routes.next().is_none() && decisions.next().is_none());
        return;
    }
    for port in &service.ports {
        let decision = decisions.next().unwrap();
        decision.policy.trials.iter().for_each(|it| count(&seen.on_trial[usize::from(it.holds())]));
        let mut selected = BTreeSet::new();
        let mut choices = decision.choices.iter();
        let mut sources = BTreeSet::new();
        for v6 in family_order(&service.cluster_ips) {
            let expected = naive::answer(&cluster, this_node, service, port, v6, opted_in);
            let choice = choices.next().unwrap();
            let Some(expected) = expected else {
                assert_eq!(choice.verdict, Verdict::Bypass);
                count(&seen.verdicts[2]);
                continue;
            };
            let route = routes.next().unwrap();
            let far = |row: &[Chosen]| -> BTreeMap<_, _> {
                assert!(row.is_sorted_by(|a, b| a.address() < b.address()), "no duplicates");
                row.iter().map(|one| (one.address(), one.locality.name())).collect()
            };
            let actual = naive::Answer {
                refused: route.verdict == Verdict::Refuse,
                tier: route.tier.map(usize::from),
                serving: route.serving.iter().copied().collect(),
                source: expected.source,
                errors: decision.policy.ignored.len(),
                chosen: far(&route.endpoints),
                wider: far(&route.wider),
                spill: route.spill,
                shares: shares(&route),
            };
            assert_eq!(actual, expected);
            obeyed(&route, &expected);
            assert_eq!(choice.verdict, route.verdict);
            assert_eq!(choice.tier(), route.tier);
            assert!(route.serving.is_sorted());
            assert!(route.frontends.iter().all(|(_, frontend)| frontend.address.is_ipv6() == v6));
            selected.extend(expected.chosen.keys().chain(expected.wider.keys()).copied());
            sources.insert(expected.source);
            note(seen, &expected, choice);
            let is_weightless = |status: &Status<'_>| matches!(status, Status::Weightless { .. });
            if decision.endpoints.iter().any(|one| is_weightless(&one.status)) {
                count(&seen.weightless);
            }
        }
        assert!(choices.next().is_none());
        // Hints are evaluated per family, and shown if any family has them.
        if sources.len() > 1 {
            sources.remove("none");
        }
        if let Some(source) = sources.first() {
            assert_eq!(decision.policy.source.to_string(), *source);
        }
        let shown: BTreeSet<_> =
            decision.endpoints.iter().filter(|one| one.selected()).map(|one| one.address).collect();
        assert_eq!(shown, selected);
        assert!(decision.endpoints.is_sorted_by(|a, b| a.address < b.address));
    }
    assert!(routes.next().is_none());
}

/// The share of each endpoint by weight, in parts of a million.
fn shares(route: &Route) -> BTreeMap<SocketAddr, u32> {
    let shares = route.shares().into_iter().filter(|_| !route.parts.is_empty());
    let each = shares.flat_map(|(endpoints, share)| {
        let each = (share / endpoints.len() as f64 * 1e6).round() as u32;
        endpoints.iter().map(move |one| (one.address(), each))
    });
    each.collect()
}

/// The row that the programs choose from gives each endpoint its share, to half a percent.
fn obeyed(route: &Route, expected: &naive::Answer) {
    if expected.shares.is_empty() {
        return;
    }
    let Rows { first, second, share } = apportionment::rows(&route.parts);
    let second_share = f64::from(share) / f64::from(SPILL_ONE);
    let mut actual: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    for (row, share) in [(first, 1.0 - second_share), (second, second_share)] {
        for one in &row {
            *actual.entry(one.address()).or_default() += share / row.len() as f64;
        }
    }
    assert!(actual.keys().eq(expected.shares.keys()), "{actual:?}");
    for ((at, share), wanted) in actual.iter().zip(expected.shares.values()) {
        assert!((share - f64::from(*wanted) / 1e6).abs() < 0.0051, "{at}: {share}, not {wanted}");
    }
}

/// For each family, whether it is IPv6, in the order of the ClusterIPs.
fn family_order(addresses: &[IpAddr]) -> Vec<bool> {
    let mut order: Vec<_> = addresses.iter().map(IpAddr::is_ipv6).collect();
    order.dedup();
    order
}

fn note(seen: &Seen, answer: &naive::Answer, choice: &Choice<'_>) {
    count(&seen.verdicts[usize::from(answer.refused)]);
    let names = [
        "none",
        "hints",
        "spec.topologyKeys",
        "openyurt.io/topologyKeys",
        "TopologyPolicy",
        "Namespace",
        "ClusterTopologyPolicy",
    ];
    count(&seen.sources[names.iter().position(|name| *name == answer.source).unwrap_or(7)]);
    if answer.errors > 0 {
        count(&seen.errors);
    }
    if let Some(tier) = answer.tier {
        count(&seen.tiers[tier.min(2)]);
    }
    if !answer.refused && answer.chosen.len() < choice.usable {
        count(&seen.partly);
    }
    if !answer.refused && choice.stock == Stock::Draining {
        count(&seen.standing_in);
    }
    if choice.parts.len() > 1 {
        count(&seen.weighed);
    }
    if choice.crowding.is_some() {
        count(&seen.crowded[usize::from(answer.spill > 0)]);
    }
    if answer.spill > 0 {
        count(&seen.spilling);
    }
    if choice.tiers.iter().any(|tier| (1..tier.min_endpoints).contains(&tier.endpoints)) {
        count(&seen.too_few);
    }
}

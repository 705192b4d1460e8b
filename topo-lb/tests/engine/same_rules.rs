//! The engine and the naive implementation agree on random clusters.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZero;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use proptest::test_runner::{Config, TestRunner};
use topo_lb_common::selection::SPILL_ONE;
use topo_lb_core::cluster::{Clients, Frontend, FrontendKind, Island, Service, State, Update};
use topo_lb_core::plan::apportionment::{self, Rows};
use topo_lb_core::topology::candidate::Stock;
use topo_lb_core::topology::decision::{Choice, Status};
use topo_lb_core::topology::exposed::Exposing;
use topo_lb_core::topology::named::Group;
use topo_lb_core::topology::{self, Chosen, Route, Scope, Verdict};

use crate::ejection::ejections;
use crate::made::id;
use crate::naive::{self, Failing, View, Who};
use crate::random;

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
    crowded: AtomicU32,
    too_few: AtomicU32,
    weighed: AtomicU32,
    weightless: AtomicU32,
    left_alone: AtomicU32,
    intended: AtomicU32,
    /// Of endpoints that are dialled: refused, steered away from, left although others are steered away from; and
    /// either of a headless Service.
    direct: [AtomicU32; 4],
    returning: [AtomicU32; 4],
    /// What clients outside get: by keys of their own; only what is on the node; no answer.
    outside: [AtomicU32; 3],
    failures: AtomicU32,
    /// Of the chosen tier, of the wider one, of parts by weight; and what failed and had to stay.
    ejected: [AtomicU32; 4],
    /// What names stand for: all that is chosen, nothing, and several groups.
    named: [AtomicU32; 3],
    on_trial: [AtomicU32; 2],
    /// Endpoints that do not answer an island: others are there, and none is allowed.
    dead: [AtomicU32; 2],
    /// Parts of a tier by age, and of weights.
    slowly: [AtomicU32; 2],
    /// Some leave; all stay, as none would be left; a strict policy takes another key.
    evacuated: [AtomicU32; 3],
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
                let result = TestRunner::new(config.clone()).run(&random::tapes(450), |tape| {
                    agree(&tape, &seen);
                    Ok(())
                });
                result.unwrap_or_else(|error| panic!("{error}"));
            });
        }
    });
    if cases >= CASES {
        let (rarest, mut rare) = (cases / 500, Vec::new());
        for (what, counts) in [
            ("verdicts", &seen.verdicts[..]),
            ("sources", &seen.sources),
            ("tiers", &seen.tiers),
            ("errors", std::slice::from_ref(&seen.errors)),
            ("some but not all chosen", std::slice::from_ref(&seen.partly)),
            ("terminating endpoints chosen", std::slice::from_ref(&seen.standing_in)),
            ("some spill", std::slice::from_ref(&seen.spilling)),
            ("a tier whose crowding counts", std::slice::from_ref(&seen.crowded)),
            ("a tier has too few", std::slice::from_ref(&seen.too_few)),
            ("several parts by weight", std::slice::from_ref(&seen.weighed)),
            ("evacuations", &seen.evacuated[..2]),
            ("endpoints that do not answer", &seen.dead),
            ("endpoints of several ages", &seen.slowly[..1]),
            ("an object on trial", &seen.on_trial),
            ("an endpoint without a weight", std::slice::from_ref(&seen.weightless)),
            ("a Service that is left alone", std::slice::from_ref(&seen.left_alone)),
            ("an intended refusal", std::slice::from_ref(&seen.intended)),
            ("endpoints that are dialled", &seen.direct),
            ("clients outside", &seen.outside),
            ("direct return", &seen.returning),
            ("a number of failures", std::slice::from_ref(&seen.failures)),
            ("endpoints that are ejected", &seen.ejected),
            ("names of headless Services", &seen.named),
        ] {
            for (index, count) in
                counts.iter().map(|count| count.load(Ordering::Relaxed)).enumerate()
            {
                if count <= rarest {
                    rare.push(format!("{what} {index}: {count} of {cases} cases"));
                }
            }
        }
        // It takes a strict policy whose every endpoint is evacuated, with others elsewhere.
        let instead = seen.evacuated[2].load(Ordering::Relaxed);
        assert!(instead > cases / 2_000, "{instead} strict policies take another key");
        assert!(rare.is_empty(), "{rare:#?}");
    }
}

fn agree(tape: &[u8], seen: &Seen) {
    let (mut cluster, this_node) = random::cluster(tape);
    random::neighbours(tape, &mut cluster);
    let failing = random::failing(tape, &cluster);
    let mut state = cluster.state(this_node);
    let all = ejections(failing.most, &failing.endpoints);
    let _ = state.apply(Update::Ejections(all), this_node);
    let island = failing.island.clone().map(|dead| Island {
        since: Instant::now(),
        services: [(id("svc"), dead.into_iter().collect())].into(),
    });
    let _ = state.apply(Update::Island(island), this_node);
    let service = &cluster.services[0];
    let opted_in = tape.len().is_multiple_of(4);
    let scope = if opted_in { Scope::OptIn } else { Scope::All };
    let said = naive::said(&cluster, this_node, service, opted_in);
    let (cluster, said, failing) = (&cluster, &said, &failing);
    let view = View { cluster, me: this_node, service, said, failing };
    agree_on_name(view, &state, scope, seen);
    let direct_return = tape.len() % 3 == 1;
    let exposing = Exposing { outside: true, direct_return, ..Exposing::default() };
    let returns = direct_return && said.direct_return && !service.external_local;
    let routes = topology::routes(&state, this_node, scope, Some(&exposing), &id("svc"));
    let mut routes = routes.into_iter();
    let mut decisions = topology::decide(&state, this_node, scope, &id("svc")).into_iter();
    let outside = topology::decide_for(Clients::Outside, &state, this_node, scope, &id("svc"));
    let mut outside = outside.into_iter();
    if service.skipped.is_some() {
        assert!(decisions.next().is_none());
        let says = service.cluster_ips.is_empty() && service.policy.direct.is_some();
        let ports = service.ports.iter().filter(|_| says && said.ours && said.direct != "allow");
        for (port, v6) in ports.flat_map(|port| [(port, false), (port, true)]) {
            let expected = naive::answer(view, port, v6, Who::Asking);
            if !expected.direct.is_empty() {
                let expected = naive::Answer { failures: 0, ..expected };
                agree_on_direct(&routes.next().unwrap(), said, &expected, v6);
                count(&seen.direct[3]);
            }
        }
        assert!(routes.next().is_none());
        return;
    }
    for port in &service.ports {
        let decision = decisions.next().unwrap();
        let policy = &decision.policy;
        policy.trials.iter().for_each(|it| count(&seen.on_trial[usize::from(it.holds())]));
        assert_eq!(policy.ignored.len(), said.errors);
        assert_eq!(policy.refusal_intended, said.intended);
        let outside = outside.next().unwrap();
        let mut selected = BTreeSet::new();
        let mut choices = decision.choices.iter().zip(&outside.choices);
        let mut sources = BTreeSet::new();
        for v6 in family_order(&service.cluster_ips) {
            let (choice, outside) = choices.next().unwrap();
            if !said.ours {
                assert_eq!([choice.verdict, outside.verdict], [Verdict::Bypass; 2]);
                count(&seen.verdicts[2]);
                continue;
            }
            let expect = |who| naive::answer(view, port, v6, who);
            let exposed = service.exposure.is_some();
            if exposed && service.internal_local {
                same(&routes.next().unwrap(), &expect(Who::InsideAtOutsideAddress), v6);
            }
            let (route, expected) = (routes.next().unwrap(), expect(Who::Inside));
            same(&route, &expected, v6);
            assert_eq!((choice.verdict, choice.tier()), (route.verdict, route.tier));
            let direct = choice.direct.as_ref();
            let endpoints = direct.map(|it| it.endpoints.iter().copied().collect());
            assert_eq!(endpoints, (said.direct != "allow").then(|| expected.direct.clone()));
            if said.direct != "allow" && !expected.direct.is_empty() {
                agree_on_direct(&routes.next().unwrap(), said, &expected, v6);
                count(&seen.direct[usize::from(said.direct == "steer")]);
            }
            if direct.is_some_and(|it| it.left > 0) {
                count(&seen.direct[2]);
            }
            selected.extend(expected.chosen.keys().chain(expected.wider.keys()).copied());
            sources.insert(expected.source);
            note(seen, &expected, choice);
            let whole = Failing { endpoints: vec![], ..failing.clone() };
            let whole = View { failing: &whole, ..view };
            let whole = naive::answer(whole, port, v6, Who::Inside);
            note_ejected(seen, &whole, &expected, failing);
            let is_weightless = |status: &Status<'_>| matches!(status, Status::Weightless { .. });
            if decision.endpoints.iter().any(|one| is_weightless(&one.status)) {
                count(&seen.weightless);
            }
            let is_consistent = match said.choice {
                None => returns,
                Some(choice) => choice == "consistent",
            };
            let differs = service.external_local || said.outside.is_some();
            if exposed && !differs && (returns || is_consistent) {
                let route = routes.next().unwrap();
                same(&route, &expect(Who::Outside), v6);
                assert_eq!(route.consistent, is_consistent);
                count(&seen.returning[usize::from(is_consistent)]);
            } else if exposed && differs {
                let (route, expected) = (routes.next().unwrap(), expect(Who::Outside));
                same(&route, &expected, v6);
                assert_eq!(route.consistent, is_consistent);
                assert_eq!((outside.verdict, outside.tier()), (route.verdict, route.tier));
                assert_eq!(outside.drops, route.drops);
                count(&seen.outside[usize::from(said.outside.is_none())]);
                if expected.dropped {
                    count(&seen.outside[2]);
                }
            }
            if exposed && returns {
                let (route, expected) = (routes.next().unwrap(), expect(Who::Peer));
                same(&route, &expected, v6);
                assert!(route.frontends.iter().all(|(_, it)| it.clients == Clients::Peers));
                count(&seen.returning[2 + usize::from(expected.refused)]);
            }
        }
        assert!(choices.next().is_none());
        note_policy(seen, service, said);
        // Hints are evaluated per family, and shown if any family has them.
        if sources.len() > 1 {
            sources.remove("none");
        }
        if let Some(source) = sources.first() {
            assert_eq!(policy.source.to_string(), *source);
        }
        let shown: BTreeSet<_> =
            decision.endpoints.iter().filter(|one| one.selected()).map(|one| one.address).collect();
        assert_eq!(shown, selected);
        assert!(decision.endpoints.is_sorted_by(|a, b| a.address < b.address));
    }
    assert!(routes.next().is_none());
}

/// The engine's route is the naive answer.
fn same(route: &Route, expected: &naive::Answer, v6: bool) {
    let far = |row: &[Chosen]| -> BTreeMap<_, _> {
        assert!(row.is_sorted_by(|a, b| a.address() < b.address()), "no duplicates");
        row.iter().map(|one| (one.address(), one.locality.name())).collect()
    };
    let mut expected = expected.clone();
    let actual = naive::Answer {
        refused: route.verdict == Verdict::Refuse,
        dropped: route.drops,
        tier: route.tier.map(usize::from),
        serving: route.serving.iter().copied().collect(),
        source: expected.source,
        chosen: far(&route.endpoints),
        wider: far(&route.wider),
        spill: route.spill,
        parts: parts(route),
        strict: route.strict,
        failures: route.failures,
        direct: expected.direct.clone(),
    };
    // Weights of 16 bits cannot give any share of a slow start exactly.
    let shares = actual.parts.iter().zip(&mut expected.parts);
    shares
        .filter(|(it, wanted)| it.0.abs_diff(wanted.0) < 100)
        .for_each(|(it, wanted)| wanted.0 = it.0);
    assert_eq!(actual, expected);
    obeyed(route, &expected);
    assert!(route.serving.is_sorted());
    assert!(route.frontends.iter().all(|(_, frontend)| frontend.address.is_ipv6() == v6));
}

/// A route that refuses the endpoints that are dialled, or steers Pods away from them, and nothing else.
fn agree_on_direct(route: &Route, said: &naive::Said, expected: &naive::Answer, v6: bool) {
    let is_steering = said.direct == "steer";
    if is_steering {
        same(route, expected, v6);
    }
    let expected = &expected.direct;
    let clients = if is_steering { Clients::Steered } else { Clients::Anywhere };
    if !is_steering || route.verdict == Verdict::Refuse {
        assert_eq!((route.verdict, route.drops, route.strict), (Verdict::Refuse, false, true));
    }
    let frontend = |(kind, frontend): &(FrontendKind, Frontend)| {
        assert_eq!((*kind, frontend.clients), (FrontendKind::Endpoint, clients));
        SocketAddr::new(frontend.address, frontend.port)
    };
    let actual: Vec<_> = route.frontends.iter().map(frontend).collect();
    assert!(actual.iter().eq(expected), "{actual:?}");
}

/// The parts by weight, with their shares in parts of a million.
fn parts(route: &Route) -> Vec<(u32, BTreeSet<SocketAddr>)> {
    let shares = route.shares().into_iter().filter(|_| !route.parts.is_empty());
    let part = |(endpoints, share): (&[Chosen], f64)| {
        (millionths(share), endpoints.iter().map(Chosen::address).collect())
    };
    shares.map(part).collect()
}

fn millionths(share: f64) -> u32 {
    (share * 1e6).round() as u32
}

/// What a name stands for is the naive answer.
fn agree_on_name(view: View<'_>, state: &State, scope: Scope, seen: &Seen) {
    let View { cluster, me: this_node, service, said, .. } = view;
    let named = topology::named::named(state, this_node, scope, &id("svc"));
    let own = named.as_ref().map_or([None, None], |it| [it.v4.as_ref(), it.v6.as_ref()]);
    for (own, v6) in own.into_iter().zip([false, true]) {
        let expected = naive::named(cluster, this_node, service, said, view.failing, v6);
        let group = |group: &Group| {
            let addresses: BTreeSet<_> = group.addresses.iter().copied().collect();
            assert!(group.addresses.is_sorted() && addresses.len() == group.addresses.len());
            (millionths(group.share), addresses)
        };
        let actual = own.map(|groups| groups.iter().map(group).collect::<Vec<_>>());
        assert_eq!(actual, expected);
        if let Some(groups) = expected {
            count(
                &seen.named[match groups.len() {
                    1 => 0,
                    0 => 1,
                    _ => 2,
                }],
            );
        }
    }
    let is_none = service.skipped.is_none() || own == [None, None];
    assert_eq!(named.is_none(), is_none);
}

/// The row that the programs choose from gives each endpoint its share, to half a percent.
fn obeyed(route: &Route, expected: &naive::Answer) {
    if expected.parts.is_empty() {
        return;
    }
    let wanted = expected.parts.iter().flat_map(|(share, members)| {
        let each = f64::from(*share) / 1e6 / members.len() as f64;
        members.iter().map(move |at| (*at, each))
    });
    let wanted: BTreeMap<SocketAddr, f64> = wanted.collect();
    let Rows { first, second, share } = apportionment::rows(&route.parts);
    let second_share = f64::from(share) / f64::from(SPILL_ONE);
    let mut actual: BTreeMap<SocketAddr, f64> = BTreeMap::new();
    for (row, share) in [(first, 1.0 - second_share), (second, second_share)] {
        for one in &row {
            *actual.entry(one.address()).or_default() += share / row.len() as f64;
        }
    }
    assert!(actual.keys().eq(wanted.keys()), "{actual:?}");
    for ((at, share), wanted) in actual.iter().zip(wanted.values()) {
        assert!((share - wanted).abs() < 0.0051, "{at}: {share}, not {wanted}");
    }
}

/// For each family, whether it is IPv6, in the order of the ClusterIPs.
fn family_order(addresses: &[IpAddr]) -> Vec<bool> {
    let mut order: Vec<_> = addresses.iter().map(IpAddr::is_ipv6).collect();
    order.dedup();
    order
}

/// What is ejected, and what stays though it fails.
fn note_ejected(seen: &Seen, whole: &naive::Answer, answer: &naive::Answer, failing: &Failing) {
    let lost = |whole: &BTreeMap<SocketAddr, _>, rest: &BTreeMap<SocketAddr, _>| whole != rest;
    let is_weighed = !whole.parts.is_empty();
    let kinds = [
        !is_weighed && lost(&whole.chosen, &answer.chosen),
        lost(&whole.wider, &answer.wider),
        is_weighed && lost(&whole.chosen, &answer.chosen),
        answer.chosen.keys().any(|at| failing.endpoints.contains(at)),
    ];
    kinds.iter().zip(&seen.ejected).filter(|it| *it.0).for_each(|(_, counter)| count(counter));
}

fn note_policy(seen: &Seen, service: &Service, said: &naive::Said) {
    let is_left_alone = !said.ours && (service.policy.hints_asked || said.source != "none");
    for (is_so, counter) in [
        (said.errors > 0, &seen.errors),
        (said.intended, &seen.intended),
        (said.failures > 0, &seen.failures),
        (is_left_alone, &seen.left_alone),
    ] {
        if is_so {
            count(counter);
        }
    }
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
    if let Some(tier) = answer.tier {
        count(&seen.tiers[tier.min(2)]);
    }
    if !answer.refused && answer.chosen.len() < choice.usable {
        count(&seen.partly);
    }
    if !answer.refused && choice.stock == Stock::Draining {
        count(&seen.standing_in);
    }
    if choice.dead > 0 {
        count(&seen.dead[usize::from(answer.refused)]);
    }
    if choice.parts.len() > 1 {
        count(&seen.weighed);
    }
    if answer.parts.len() > choice.parts.len().max(1) {
        count(&seen.slowly[usize::from(!choice.parts.is_empty())]);
    }
    let has_keys = !choice.tiers.is_empty() && !answer.refused;
    let instead = has_keys && choice.tier().map(usize::from) == Some(choice.tiers.len());
    for (at, is_so) in
        [choice.evacuated > 0, choice.evacuation_left_alone, instead].into_iter().enumerate()
    {
        if is_so {
            count(&seen.evacuated[at]);
        }
    }
    if choice.crowding.is_some() {
        count(&seen.crowded);
    }
    if answer.spill > 0 {
        count(&seen.spilling);
    }
    if choice.tiers.iter().any(|tier| (1..tier.min_endpoints).contains(&tier.endpoints)) {
        count(&seen.too_few);
    }
}

//! Endpoints that an island has found dead: what is left of a decision.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use topo_lb_common::backend::Locality;
use topo_lb_core::cluster::service::Protocol;
use topo_lb_core::cluster::{Island, State, Update};
use topo_lb_core::explain;
use topo_lb_core::topology::decision::Status;
use topo_lb_core::topology::{Route, Scope, Verdict, decide, ejected, routes, watched};

use crate::ejection::{addresses, at, route};
use crate::made::{Cluster, Otherwise as _, Z, endpoint, id, keyed, service};
use crate::random;

fn island(dead: &[SocketAddr]) -> Update {
    let since = Instant::now().checked_sub(Duration::from_secs(125)).unwrap();
    let dead: BTreeSet<_> = dead.iter().copied().collect();
    Update::Island(Some(Island {
        since,
        services: [(id("svc"), dead.into_iter().collect())].into(),
    }))
}

/// The cluster of the ejections, of which nobody asks for any.
fn cluster(keys: &str) -> Cluster {
    Cluster { services: vec![keyed(keys)], ..crate::ejection::cluster(keys) }
}

fn state(cluster: &Cluster, this_node: &str, dead: &[SocketAddr]) -> State {
    let mut state = cluster.state(this_node);
    let _ = state.apply(island(dead), this_node);
    state
}

#[test]
fn the_dead_are_out_down_to_the_last_one_then_the_next_tier_serves_and_then_nobody() {
    let open = cluster(&format!("{Z},*"));
    for (dead, left, tier) in [
        (&[][..], &[1, 2, 3, 4][..], Some(0)),
        (&[1, 2, 4], &[3], Some(0)),
        (&[1, 2, 3, 4], &[5, 6], Some(1)),
        (&[1, 2, 3, 4, 5], &[6], Some(1)),
        // Nobody is left who could be alive: everything stays as it was.
        (&[1, 2, 3, 4, 5, 6], &[1, 2, 3, 4], Some(0)),
        (&[9], &[1, 2, 3, 4], Some(0)),
    ] {
        let route = route(&state(&open, "n1", &at(dead)), "n1");
        assert_eq!((addresses(&route), route.tier), (at(left), tier), "{dead:?}");
        assert_eq!(route.failures, 3, "on an island every Service has ejection");
        assert!(at(dead).iter().all(|it| route.serving.contains(it) || !left.contains(&6)));
    }
    let strict = cluster(Z);
    let refused = route(&state(&strict, "n1", &at(&[1, 2, 3, 4])), "n1");
    assert_eq!((refused.verdict, addresses(&refused)), (Verdict::Refuse, vec![]));
    assert_eq!(refused.serving.len(), 6, "open connections stay");
}

#[test]
fn datagrams_are_not_probed_and_stay_as_they_are() {
    let mut both = cluster(Z);
    let mut udp = both.services[0].ports[0].clone();
    (udp.name, udp.protocol) = ("dns".into(), Protocol::Udp);
    both.services[0].ports.push(udp.clone());
    let mut own = both.slices[0].ports[0].clone();
    (own.name, own.protocol) = (udp.name, udp.protocol);
    both.slices[0].ports = [both.slices[0].ports[0].clone(), own].into();
    let state = state(&both, "n1", &at(&[1]));
    let all = routes(&state, "n1", Scope::All, None, &id("svc"));
    let of = |protocol| all.iter().find(|route| route.protocol == protocol).unwrap();
    assert_eq!(addresses(of(Protocol::Tcp)), at(&[2, 3, 4]));
    assert_eq!(addresses(of(Protocol::Udp)), at(&[1, 2, 3, 4]));
    assert_eq!((of(Protocol::Tcp).failures, of(Protocol::Udp).failures), (3, 0));
}

#[test]
fn the_reason_says_who_does_not_answer_and_since_when_nobody_else_could_tell() {
    let state = state(&cluster(&format!("{Z},*")), "n1", &at(&[2]));
    let decisions = decide(&state, "n1", Scope::All, &id("svc"));
    let choice = &decisions[0].choices[0];
    assert_eq!((choice.chosen, choice.dead, choice.usable), (3, 1, 5));
    assert!(matches!(decisions[0].endpoints[1].status, Status::Dead(_)));
    let report = explain::report(&state, "n1", Scope::All, &[id("svc")]);
    let port = &report.services[0];
    let end = "; 1 more is ready by its slice, but does not answer";
    assert!(port.decision.reason.ends_with(end), "{}", port.decision.reason);
    let one = &port.endpoints[1];
    let wanted = "does not answer, and the API server has not been heard of for 2 min 5 s";
    assert_eq!((&*one.reason, one.selected), (wanted, false));
}

#[test]
fn all_are_back_with_the_api_servers_first_word() {
    let cluster = cluster(Z);
    let mut state = state(&cluster, "n1", &at(&[1, 2]));
    assert_ne!(state, cluster.state("n1"));
    assert!(ejected::setting(&state, "n1", &id("svc")).is_some());
    let changed = state.apply(Update::Island(None), "n1");
    assert_eq!(changed.services, [id("svc")].into());
    assert_eq!(state, cluster.state("n1"));
    assert_eq!(ejected::setting(&state, "n1", &id("svc")), None);
    assert_eq!(route(&state, "n1"), route(&cluster.state("n1"), "n1"));
    // What does not differ is not decided anew.
    assert!(state.apply(Update::Island(None), "n1").services.is_empty());
    let _ = state.apply(island(&at(&[1])), "n1");
    assert!(state.apply(island(&at(&[1])), "n1").services.is_empty());
    assert_eq!(state.apply(island(&[]), "n1").services.len(), 1);
}

#[test]
fn a_service_that_is_left_alone_stays_so_and_is_not_watched() {
    let plain = Cluster::of(vec![], service(), vec![endpoint("10.0.0.1", "")]);
    let state = state(&plain, "n1", &[]);
    assert!(routes(&state, "n1", Scope::OptIn, None, &id("svc")).is_empty());
    assert!(watched::groups(&state, "n1", Scope::OptIn, &id("svc")).is_empty());
    assert_eq!(watched::groups(&state, "n1", Scope::All, &id("svc")).len(), 1);
    assert!(watched::groups(&state, "n1", Scope::All, &id("none")).is_empty());
}

#[test]
fn the_used_are_watched_with_their_dead_and_a_few_others_of_each_distance() {
    let of = |keys: &str, dead: &[u8]| {
        let mut cluster = cluster(keys);
        let more = (11..=19).map(|host| endpoint(&format!("10.0.0.{host}"), "n3"));
        let endpoints = cluster.slices[0].endpoints.iter().cloned().chain(more);
        cluster.slices[0].endpoints = endpoints.collect();
        let state = state(&cluster, "n1", &at(dead));
        watched::groups(&state, "n1", Scope::All, &id("svc")).remove(0)
    };
    let is_used = |all: &[watched::Watched]| {
        let used = all.iter().filter(|one| one.is_used).map(|one| one.address);
        used.collect::<Vec<_>>()
    };
    let all = of(&format!("{Z},*"), &[1, 2]);
    assert_eq!(is_used(&all), at(&[1, 2, 3, 4]));
    assert!(all[..4].iter().all(|one| one.locality == Locality::Node));
    assert_eq!(all.len(), 8, "four of those elsewhere");
    let all = of(&format!("{Z},*"), &[1, 2, 3, 4]);
    assert_eq!((is_used(&all).len(), all.len()), (15, 15), "the next tier is in use");
    let all = of(Z, &[1, 2, 3, 4]);
    assert_eq!((is_used(&all), all.len()), (at(&[1, 2, 3, 4]), 8));
}

/// Routes of TCP by frontends.
fn by_frontends(state: &State, node: &str) -> BTreeMap<String, Route> {
    let all = routes(state, node, Scope::All, None, &id("svc")).into_iter();
    let all = all.filter(|route| route.protocol == Protocol::Tcp);
    all.map(|route| (format!("{:?}", route.frontends), route)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 10_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Decisions are as if slices said of the dead that they are not ready, unless all are dead: then they are as
    /// if nobody were.
    #[test]
    fn the_dead_count_as_not_ready_and_never_all(
        tape in random::tapes(280), chance in any::<u64>(),
    ) {
        let (cluster, this_node) = random::cluster(&tape);
        let whole = cluster.state(this_node);
        let addresses = || cluster.slices.iter().flat_map(|slice| &slice.endpoints);
        let all: BTreeSet<IpAddr> = addresses().map(|one| one.address).collect();
        let hosts: HashSet<IpAddr> =
            all.iter().enumerate().filter(|(at, _)| chance >> (at % 64) & 1 == 1).map(|it| *it.1).collect();
        let sockets = cluster.slices.iter().flat_map(|slice| {
            let port = |one: &IpAddr, port| SocketAddr::new(*one, port);
            let hosts = &hosts;
            slice.ports.iter().flat_map(move |it| hosts.iter().map(move |one| port(one, it.port)))
        });
        let dead: Vec<_> = sockets.collect();
        let mut island_state = whole.clone();
        let _ = island_state.apply(island(&dead), this_node);
        let mut told = Cluster { ..cluster };
        for slice in &mut told.slices {
            for one in slice.endpoints.iter_mut().filter(|one| hosts.contains(&one.address)) {
                (one.ready, one.serving) = (false, false);
            }
        }
        let told = told.state(this_node);
        let (before, after, told) = (
            by_frontends(&whole, this_node),
            by_frontends(&island_state, this_node),
            by_frontends(&told, this_node),
        );
        for (name, route) in &after {
            // Who dials endpoints is kept from those that the policy passed over: the dead are no such.
            let (Some(before), Some(told)) = (before.get(name), told.get(name)) else { continue };
            // Open connections stay, and a connect is seen to fail.
            let plain = |route: &Route| Route { failures: 0, serving: Vec::new(), ..route.clone() };
            let (now, before) = (plain(route), plain(before));
            let used = || now.endpoints.iter().chain(&now.wider).map(|one| one.address());
            let has_dead = used().any(|one| dead.contains(&one));
            if has_dead {
                prop_assert_eq!(&now, &before, "all are dead, so nobody is");
            } else {
                prop_assert!(now == before || now == plain(told), "{:?} {:?}", now, told);
            }
        }
    }
}

#[test]
fn an_endpoint_that_is_not_ready_is_no_dead_one() {
    let mut cluster = cluster(&format!("{Z},*"));
    let one = &mut cluster.slices[0].endpoints[1];
    *one = one.clone().unready();
    let state = state(&cluster, "n1", &at(&[2]));
    let decisions = decide(&state, "n1", Scope::All, &id("svc"));
    assert_eq!(decisions[0].endpoints[1].status, Status::NotReady);
}

//! `topo-lb.io/ejection`: what is taken out of a decision.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use topo_lb_common::totals::Failure;
use topo_lb_core::cluster::ejection::most_ejected;
use topo_lb_core::cluster::service::Protocol;
use topo_lb_core::cluster::{Ejection, Ejections, ServiceEjections, State, Update};
use topo_lb_core::explain;
use topo_lb_core::topology::decision::Status;
use topo_lb_core::topology::{Route, Scope, Verdict, decide, ejected, ignored, routes};

use crate::made::{Asking as _, Cluster, H, Otherwise as _, Z, endpoint, id, keyed, node, service};
use crate::random;

pub(crate) fn ejections(most: u8, endpoints: &[SocketAddr]) -> Ejections {
    let until = Instant::now() + Duration::from_secs(1_000);
    let out = |&endpoint| Ejection { endpoint, until, failures: 3, why: Failure::Timeout };
    let of = ServiceEjections { most, endpoints: endpoints.iter().map(out).collect() };
    Ejections { services: [(id("svc"), of)].into(), ..Ejections::default() }
}

pub(crate) fn at(hosts: &[u8]) -> Vec<SocketAddr> {
    hosts.iter().map(|&host| SocketAddr::new([10, 0, 0, host].into(), 9376)).collect()
}

/// Two nodes in a zone each; endpoints 1 to 4 on `n1`, and 5 to 6 on `n2`.
pub(crate) fn cluster(keys: &str) -> Cluster {
    let nodes = vec![
        node("n1", &[(H, "n1"), (Z, "a")]),
        node("n2", &[(H, "n2"), (Z, "b")]),
        node("n3", &[(H, "n3"), (Z, "c")]),
    ];
    let on = |host: u8| endpoint(&format!("10.0.0.{host}"), if host < 5 { "n1" } else { "n2" });
    let asking = keyed(keys).asking(|policy| policy.ejection = Some("3".into()));
    Cluster::of(nodes, asking, (1..=6).map(on).collect())
}

fn state(cluster: &Cluster, this_node: &str, ejections: Ejections) -> State {
    let mut state = cluster.state(this_node);
    let _ = state.apply(Update::Ejections(ejections), this_node);
    state
}

pub(crate) fn route(state: &State, this_node: &str) -> Route {
    routes(state, this_node, Scope::All, None, &id("svc")).remove(0)
}

pub(crate) fn addresses(route: &Route) -> Vec<SocketAddr> {
    route.endpoints.iter().map(topo_lb_core::topology::Chosen::address).collect()
}

#[test]
fn the_first_that_failed_are_ejected_up_to_the_share_and_never_all() {
    let cluster = cluster(&format!("{H},{Z},*"));
    for (most, out, left) in [
        (50, &[][..], &[1, 2, 3, 4][..]),
        (50, &[2], &[1, 3, 4]),
        (50, &[4, 2, 1], &[1, 3]),
        (49, &[4, 2, 1], &[1, 2, 3]),
        (100, &[4, 2, 1, 3], &[3]),
        // Of another tier, and of none.
        (50, &[5, 9], &[1, 2, 3, 4]),
    ] {
        let state = state(&cluster, "n1", ejections(most, &at(out)));
        let route = route(&state, "n1");
        assert_eq!(addresses(&route), at(left), "{most} % {out:?}");
        assert_eq!((route.tier, route.failures), (Some(0), 3), "the tier stays in force");
    }
}

#[test]
fn the_reason_says_what_is_ejected_and_why() {
    let cluster = cluster(&format!("{Z},*"));
    let state = state(&cluster, "n1", ejections(50, &at(&[2])));
    let decisions = decide(&state, "n1", Scope::All, &id("svc"));
    let choice = &decisions[0].choices[0];
    assert_eq!((choice.chosen, choice.ejected, choice.usable), (3, 1, 6));
    assert_eq!(choice.tiers[0].endpoints, 4, "the tier has it still");
    assert!(matches!(decisions[0].endpoints[1].status, Status::Ejected(it) if it.failures == 3));
    let report = explain::report(&state, "n1", Scope::All, &[id("svc")]);
    let port = &report.services[0];
    let sentence = "4 of 6 endpoints share this node's topology.kubernetes.io/zone=a; 1 of them \
                    ejected: connects of this node failed";
    assert_eq!(port.decision.reason, sentence);
    let one = &port.endpoints[1];
    let (begin, end) =
        ("ejected for ", " s more: 3 connects of this node in a row failed (timeout)");
    assert!(one.reason.starts_with(begin) && one.reason.ends_with(end), "{}", one.reason);
    assert!(!one.selected);
}

#[test]
fn one_more_may_be_left_out_while_the_tier_has_room() {
    let cluster = cluster(&format!("{Z},*"));
    let may = |node, out: &[u8], host: u8| {
        let state = state(&cluster, node, ejections(50, &at(out)));
        ejected::may_eject(&state, node, &id("svc"), at(&[host])[0]).is_some()
    };
    assert!(may("n1", &[], 1) && may("n1", &[2], 1));
    assert!(!may("n1", &[2, 3], 1), "half of the tier is ejected");
    assert!(!may("n1", &[1], 1), "it is ejected already");
    assert!(!may("n1", &[], 5), "no connection goes there");
    assert!(may("n2", &[1, 2, 3], 5) && !may("n2", &[6], 5), "of two, one");
    let plain = Cluster::of(vec![], service(), vec![endpoint("10.0.0.1", "")]);
    let state = state(&plain, "n1", Ejections::default());
    assert_eq!(ejected::may_eject(&state, "n1", &id("svc"), at(&[1])[0]), None, "nobody asked");
}

#[test]
fn a_probe_is_compared_with_an_endpoint_that_is_as_near() {
    let cluster = cluster("*");
    let fellow = |out: &[u8], host: u8| {
        let state = state(&cluster, "n1", ejections(100, &at(out)));
        ejected::fellow(&state, "n1", &id("svc"), at(&[host])[0])
    };
    assert_eq!(fellow(&[1], 1), Some(at(&[2])[0]));
    assert_eq!(fellow(&[5], 5), Some(at(&[6])[0]));
    assert_eq!(fellow(&[5, 6], 5), Some(at(&[1])[0]));
    assert_eq!(fellow(&[9], 9), None);
}

#[test]
fn an_endpoint_that_is_not_ready_is_not_among_those_that_are_left_out() {
    let mut cluster = cluster(&format!("{Z},*"));
    let one = &mut cluster.slices[0].endpoints[1];
    *one = one.clone().unready();
    let state = state(&cluster, "n1", ejections(50, &at(&[2, 3])));
    let out = ejected::ejected(&state, "n1", &id("svc"));
    assert_eq!(out, at(&[3]).into_iter().collect());
    assert!(!ejected::ready(&state, &id("svc")).contains(&at(&[2])[0]));
}

#[test]
fn where_failures_are_not_seen_the_annotation_is_ignored_and_that_is_said() {
    let cluster = cluster("*");
    let mut state = cluster.state("n1");
    assert_eq!(ignored(&state, &cluster.services[0].id), None);
    let unseen = Ejections { unseen: Some("--accounting off".into()), ..Ejections::default() };
    let changed = state.apply(Update::Ejections(unseen), "n1");
    assert_eq!(changed.services, [id("svc")].into());
    assert_eq!(route(&state, "n1").failures, 0);
    assert_eq!(ejected::setting(&state, "n1", &id("svc")), None);
    let wanted = "annotation topo-lb.io/ejection is ignored: this node does not see that connects \
                  fail: --accounting off";
    assert_eq!(ignored(&state, &cluster.services[0].id).as_deref(), Some(wanted));
    let decisions = decide(&state, "n1", Scope::All, &id("svc"));
    assert_eq!(decisions[0].policy.ignored[0].to_string(), wanted);
    let _ = state.apply(Update::Ejections(Ejections::default()), "n1");
    assert_eq!(route(&state, "n1").failures, 3);
}

#[test]
fn a_setting_that_breaks_a_rule_leaves_the_rest_of_the_policy() {
    let cluster = Cluster {
        services: vec![keyed(Z).asking(|policy| policy.ejection = Some("never".into()))],
        ..cluster(Z)
    };
    let state = cluster.state("n1");
    let route = route(&state, "n1");
    assert_eq!((route.failures, addresses(&route)), (0, at(&[1, 2, 3, 4])));
    let begin = "annotation topo-lb.io/ejection is ignored: ";
    let mut datagrams = service().asking(|policy| policy.ejection = Some("3".into()));
    datagrams.ports[0].protocol = Protocol::Udp;
    for (asking, rule) in [
        (&cluster.services[0], "`never` is not a number of failed connects in a row"),
        (&datagrams, "the Service has no TCP port"),
    ] {
        let state = Cluster::of(vec![], asking.clone(), vec![]).state("n1");
        let text = ignored(&state, &asking.id).unwrap_or_default();
        assert!(text.strip_prefix(begin).is_some_and(|text| text.starts_with(rule)), "{text}");
    }
}

#[test]
fn a_service_that_asks_for_ejection_alone_is_in_the_scope() {
    for (text, is_in_scope) in [(None, false), (Some("3"), true), (Some("0"), false)] {
        let asking = service().asking(|policy| policy.ejection = text.map(Into::into));
        let cluster = Cluster::of(vec![], asking, vec![endpoint("10.0.0.1", "")]);
        let routes = routes(&cluster.state("n1"), "n1", Scope::OptIn, None, &id("svc"));
        assert_eq!(!routes.is_empty(), is_in_scope, "{text:?}");
    }
}

#[test]
fn only_what_differs_is_decided_anew() {
    let mut state = cluster(Z).state("n1");
    let some = ejections(50, &at(&[2]));
    assert_eq!(state.apply(Update::Ejections(some.clone()), "n1").services.len(), 1);
    assert!(state.apply(Update::Ejections(some), "n1").services.is_empty());
    assert_eq!(state.apply(Update::Ejections(Ejections::default()), "n1").services.len(), 1);
    // The same for one Service.
    let of = |hosts: &[u8]| ejections(50, &at(hosts)).services[&id("svc")].clone();
    let (one, two, none) = (of(&[2]), of(&[2, 3]), ServiceEjections::default());
    for (now, changed) in [(&none, 0), (&one, 1), (&one, 0), (&two, 1), (&none, 1)] {
        let update = Update::ServiceEjections(id("svc"), now.clone());
        assert_eq!(state.apply(update, "n1").services.len(), changed);
    }
    assert_eq!(*state.ejections(), Ejections::default());
    let stranger = ServiceEjections { most: 50, endpoints: Arc::default() };
    let unknown = Ejections { services: [(id("other"), stranger)].into(), ..Ejections::default() };
    assert!(state.apply(Update::Ejections(unknown), "n1").services.is_empty());
}

/// Routes by frontends: ejection changes no other field.
fn by_frontends(state: &State, node: &str) -> BTreeMap<String, Route> {
    let all = routes(state, node, Scope::All, None, &id("svc")).into_iter();
    all.map(|route| (format!("{:?}", route.frontends), route)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_fails_the_tier_stays_in_force_with_its_share_of_endpoints(
        tape in random::tapes(280), chance in any::<u64>(), most in 1_u8..=100,
    ) {
        let (cluster, this_node) = random::cluster(&tape);
        let state = cluster.state(this_node);
        let before = by_frontends(&state, this_node);
        let known = decide(&state, this_node, Scope::All, &id("svc")).into_iter();
        let known = known.flat_map(|decision| decision.endpoints).map(|one| one.address);
        let failing: Vec<_> =
            known.enumerate().filter(|(at, _)| chance >> (at % 64) & 1 == 1).map(|it| it.1).collect();
        let mut state = state;
        let _ = state.apply(Update::Ejections(ejections(most, &failing)), this_node);
        let after = by_frontends(&state, this_node);
        prop_assert!(before.keys().eq(after.keys()));
        for (name, route) in &after {
            let whole = &before[name];
            prop_assert_eq!((route.verdict, route.tier), (whole.verdict, whole.tier));
            let mut out = 0;
            for (now, all) in
                [(&route.endpoints, &whole.endpoints), (&route.wider, &whole.wider)]
            {
                let gone: Vec<_> =
                    all.iter().filter(|one| !now.contains(one)).map(|it| it.address()).collect();
                prop_assert!(now.iter().all(|one| all.contains(one)));
                prop_assert!(gone.iter().all(|one| failing.contains(one)), "only what fails");
                let mut of_tier: Vec<_> = all.iter().map(|it| it.address()).collect();
                of_tier.retain(|one| failing.contains(one));
                let wanted = match route.protocol {
                    Protocol::Tcp => of_tier.len().min(most_ejected(all.len(), most)),
                    Protocol::Udp | Protocol::Sctp => 0,
                };
                // With weights, tiers share a row, and each has its own share to lose.
                let is_weighed = !whole.parts.is_empty();
                prop_assert!(gone.len() == wanted || is_weighed && gone.len() < wanted);
                prop_assert!(gone.iter().all(|one| route.serving.contains(one)), "its flows stay");
                out += gone.len();
            }
            prop_assert_eq!(route.verdict == Verdict::Route, !route.endpoints.is_empty());
            prop_assert_eq!(route.serving.len(), whole.serving.len() + out);
            let rest = Route {
                endpoints: whole.endpoints.clone(),
                wider: whole.wider.clone(),
                serving: whole.serving.clone(),
                parts: whole.parts.clone(),
                starts: whole.starts,
                ..route.clone()
            };
            prop_assert_eq!(&rest, whole);
        }
    }
}

//! `topo-lb.io/weights`.

use topo_lb_core::cluster::{Annotation, Clients, Endpoint, Node, Service};
use topo_lb_core::lint::{self, Severity};
use topo_lb_core::topology::decision::Status;
use topo_lb_core::topology::field::Field;
use topo_lb_core::topology::{self, Scope, Verdict};

use crate::made::{Asking, Cluster, H, Otherwise, Z, endpoint, id, keyed, node, service};

fn nodes() -> Vec<Node> {
    vec![
        node("n1", &[(H, "n1"), ("rack", "r1"), (Z, "a")]),
        node("n2", &[(H, "n2"), ("rack", "r2"), (Z, "a")]),
        node("n3", &[(H, "n3"), (Z, "b")]),
        node("n4", &[(H, "n4"), (Z, "c")]),
    ]
}

/// One endpoint on n1, two on n2, one on n3: so three in zone a, one in zone b.
fn endpoints() -> Vec<Endpoint> {
    [("10.0.0.1", "n1"), ("10.0.0.2", "n2"), ("10.0.0.3", "n2"), ("10.0.0.4", "n3")]
        .map(|(address, node)| endpoint(address, node))
        .into()
}

fn weighed(service: Service, weights: &str) -> Service {
    service.asking(|policy| policy.weights = Some(weights.into()))
}

/// Tiers with weights 60, 30 and 10.
fn tiers() -> Service {
    weighed(keyed(&format!("{H},{Z},*")), &format!("{H}: 60, {Z}: 30, *: 10"))
}

/// Percent of new connections by the last number of the endpoint's address. Empty: no weights.
fn shares(cluster: &Cluster, this_node: &str) -> Vec<(u8, f64)> {
    let route = &cluster.routes(this_node)[0];
    let mut shares = Vec::new();
    for (endpoints, share) in route.shares().into_iter().filter(|_| !route.parts.is_empty()) {
        for one in endpoints {
            let last = one.address().ip().to_string();
            let last = last.rsplit_once('.').unwrap().1.parse().unwrap();
            shares.push((last, (share / endpoints.len() as f64 * 1e4).round() / 100.0));
        }
    }
    shares.sort_unstable_by_key(|(last, _)| *last);
    shares
}

#[test]
fn every_tier_gets_its_share() {
    let cluster = Cluster::of(nodes(), tiers(), endpoints());
    assert_eq!(shares(&cluster, "n1"), [(1, 60.0), (2, 15.0), (3, 15.0), (4, 10.0)]);
    assert_eq!(cluster.routes("n1")[0].tier, Some(0));
    assert_eq!(shares(&cluster, "n2"), [(1, 30.0), (2, 30.0), (3, 30.0), (4, 10.0)]);
}

#[test]
fn a_tier_that_adds_no_endpoint_leaves_its_share_to_the_others_in_proportion() {
    let cluster = Cluster::of(nodes(), tiers(), endpoints());
    // n3: its zone has no other endpoint; 60 and 10 of 70 are left.
    assert_eq!(shares(&cluster, "n3"), [(1, 4.76), (2, 4.76), (3, 4.76), (4, 85.71)]);
    // n4: nothing but the star.
    assert_eq!(shares(&cluster, "n4"), [1, 2, 3, 4].map(|last| (last, 25.0)));
    assert_eq!(cluster.routes("n4")[0].tier, Some(2));
}

#[test]
fn the_endpoints_of_a_tier_that_is_too_small_are_the_next_ones() {
    let few = tiers().asking(|policy| policy.min_endpoints = Some("2,1".into()));
    let cluster = Cluster::of(nodes(), few, endpoints());
    // Of n1's own endpoint and two in its zone: 30 of 40.
    assert_eq!(shares(&cluster, "n1"), [(1, 25.0), (2, 25.0), (3, 25.0), (4, 25.0)]);
    assert_eq!(cluster.routes("n1")[0].tier, Some(1));
    assert_eq!(shares(&cluster, "n2"), [(1, 30.0), (2, 30.0), (3, 30.0), (4, 10.0)]);
}

#[test]
fn strict_keys_stay_strict() {
    let strict = weighed(keyed(&format!("{H},{Z}")), &format!("{H}: 1, {Z}: 1"));
    let cluster = Cluster::of(nodes(), strict, endpoints());
    assert_eq!(shares(&cluster, "n1"), [(1, 50.0), (2, 25.0), (3, 25.0)]);
    assert_eq!(cluster.routes("n4")[0].verdict, Verdict::Refuse);
    // Weights reach no endpoint that the keys do not allow.
    let zone = weighed(keyed(Z), &format!("{Z}: a=1, b=99"));
    let cluster = Cluster::of(nodes(), zone, endpoints());
    assert_eq!(shares(&cluster, "n1").len(), 3);
    assert_eq!(shares(&cluster, "n3"), [(4, 100.0)]);
    assert_eq!(cluster.routes("n4")[0].verdict, Verdict::Refuse);
}

#[test]
fn every_value_gets_its_share_and_the_star_the_rest() {
    let of = |weights: &str| Cluster::of(nodes(), weighed(service(), weights), endpoints());
    for this_node in ["n1", "n3", "n4", "unknown"] {
        let by_zone = of(&format!("{Z}: a=60, b=40"));
        let wanted = [(1, 20.0), (2, 20.0), (3, 20.0), (4, 40.0)];
        assert_eq!(shares(&by_zone, this_node), wanted);
    }
    // n3 has no rack.
    assert_eq!(shares(&of("rack: r2=50, *=50"), "n1"), [1, 2, 3, 4].map(|last| (last, 25.0)));
    // Nobody is in rack r9.
    assert_eq!(shares(&of("rack: r1=30, r2=20, r9=50"), "n1"), [(1, 60.0), (2, 20.0), (3, 20.0)]);
}

#[test]
fn a_value_of_weight_0_is_left_while_another_can_be_used() {
    let drained = weighed(service(), &format!("{Z}: a=0, *=1"));
    let cluster = Cluster::of(nodes(), drained.clone(), endpoints());
    assert_eq!(shares(&cluster, "n1"), [(4, 100.0)]);
    let route = &cluster.routes("n1")[0];
    assert_eq!(route.serving.len(), 3, "existing flows may stay");
    cluster.decided("n1", |decision| {
        let first = &decision.endpoints[0];
        assert_eq!(first.status, Status::Weightless { label: Z, own: Ok("a") });
        assert!(!first.selected() && decision.endpoints[3].selected());
    });
    // With nothing else there, it is used: weights never refuse.
    let cluster = Cluster::of(nodes(), drained, endpoints()[..3].to_vec());
    assert_eq!(shares(&cluster, "n1"), []);
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
}

#[test]
fn only_usable_endpoints_count() {
    let mut some = endpoints();
    some[3] = some[3].clone().unready();
    let cluster = Cluster::of(nodes(), weighed(service(), &format!("{Z}: a=60, b=40")), some);
    assert_eq!(shares(&cluster, "n1"), [(1, 33.33), (2, 33.33), (3, 33.33)]);
}

#[test]
fn weights_of_values_make_a_policy_of_their_own() {
    let by_zone = weighed(service(), &format!("{Z}: a=1"));
    for (service, routes) in [(by_zone, 1), (weighed(service(), "broken"), 0)] {
        let state = Cluster::of(nodes(), service, endpoints()).state("n1");
        let opted_in = topology::routes(&state, "n1", Scope::OptIn, None, &id("svc"));
        assert_eq!(opted_in.len(), routes);
    }
}

#[test]
fn keys_for_clients_outside_have_no_weights() {
    let own = tiers().asking(|policy| policy.external_topology_keys = Some("*".into()));
    for (service, weighed) in [(tiers(), true), (own, false)] {
        let state = Cluster::of(nodes(), service, endpoints()).state("n1");
        let outside = topology::decide_for(Clients::Outside, &state, "n1", Scope::All, &id("svc"));
        assert_eq!(!outside[0].choices[0].parts.is_empty(), weighed);
    }
}

#[test]
fn broken_weights_are_ignored_whole_and_the_keys_hold() {
    let broken = weighed(keyed(Z), &format!("{Z}: 80, *: 20"));
    let cluster = Cluster::of(nodes(), broken, endpoints());
    assert_eq!(shares(&cluster, "n1"), []);
    assert_eq!(cluster.chosen("n3"), ["10.0.0.4"]);
    cluster.decided("n1", |decision| {
        let [ignored] = &decision.policy.ignored[..] else { panic!("one") };
        assert_eq!(ignored.what, Field::Of(Annotation::Weights));
        let text = ignored.to_string();
        assert!(text.starts_with("annotation topo-lb.io/weights is ignored: weight 2 is for `*`"));
    });
}

#[test]
fn lint_names_values_without_weights_and_weights_without_endpoints() {
    let found = |weights: &str| {
        let cluster = Cluster::of(nodes(), weighed(service(), weights), endpoints());
        let findings = lint::findings(&cluster.state(""), Scope::All);
        findings.into_iter().map(|it| (it.rule, it.severity, it.message)).collect::<Vec<_>>()
    };
    assert_eq!(found(&format!("{Z}: a=1, b=0")), []);
    assert_eq!(found("rack: *=1"), []);
    let cases = [
        (format!("{Z}: a=1"), lint::Rule::Weights, Severity::Warning, "name them: b;"),
        (format!("{Z}: a=1, b=1, x=1"), lint::Rule::Weights, Severity::Info, "names: x; the"),
        (format!("{Z}: x=1"), lint::Rule::Weights, Severity::Warning, "no effect, as it names no"),
        ("room: x=1".to_owned(), lint::Rule::UnknownKey, Severity::Warning, "the label room of"),
    ];
    for (weights, rule, severity, part) in cases {
        let findings = found(&weights);
        let [(own, level, message)] = &findings[..] else { panic!("{weights}: {findings:?}") };
        assert!((*own, *level) == (rule, severity) && message.contains(part), "{findings:?}");
    }
}

//! The refinements of keys: `topo-lb.io/min-endpoints` and `topo-lb.io/spill`.

use topo_lb::cluster::{Annotation, Endpoint, Node, Service};
use topo_lb::topology::field::Field;
use topo_lb::topology::validation::Rule;
use topo_lb::topology::{self, Scope, Verdict};
use topo_lb_common::selection::SPILL_ONE;

use crate::made::{
    Asking, Cluster, H, Otherwise, Z, asking, endpoint, id, keyed, node, openyurt, service,
};

fn nodes() -> Vec<Node> {
    vec![
        node("n1", &[(H, "n1"), ("rack", "r1"), (Z, "a")]),
        node("n2", &[(H, "n2"), ("rack", "r1"), (Z, "a")]),
        node("n3", &[(H, "n3"), ("rack", "r3"), (Z, "a")]),
        node("n4", &[(H, "n4"), ("rack", "r4"), (Z, "b")]),
    ]
}

/// One endpoint on n1, two on n3, one on n4: n1's rack has no other.
fn endpoints() -> Vec<Endpoint> {
    [("10.0.0.1", "n1"), ("10.0.0.2", "n3"), ("10.0.0.3", "n3"), ("10.0.0.4", "n4")]
        .map(|(address, node)| endpoint(address, node))
        .into()
}

const WATERFALL: &str = "kubernetes.io/hostname, rack, topology.kubernetes.io/zone, *";

fn least(keys: &str, numbers: &str) -> Service {
    keyed(keys).asking(|policy| policy.min_endpoints = Some(numbers.into()))
}

fn spilling(keys: &str, share: &str) -> Service {
    keyed(keys).asking(|policy| policy.spill = Some(share.into()))
}

fn wider(cluster: &Cluster, this_node: &str) -> (Vec<String>, u16) {
    let route = &cluster.routes(this_node)[0];
    (route.wider.iter().map(|one| one.address().ip().to_string()).collect(), route.spill)
}

#[test]
fn a_tier_with_too_few_endpoints_is_passed_over() {
    for (numbers, tier, chosen) in [
        ("1", 0, &["10.0.0.1"][..]),
        ("2", 2, &["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        ("3", 2, &["10.0.0.1", "10.0.0.2", "10.0.0.3"]),
        ("4", 3, &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]),
        ("2,1,1", 1, &["10.0.0.1"]),
        ("2,1,1,1", 1, &["10.0.0.1"]),
        ("65535", 3, &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]),
    ] {
        let cluster = Cluster::of(nodes(), least(WATERFALL, numbers), endpoints());
        assert_eq!(cluster.chosen("n1"), chosen, "{numbers}");
        assert_eq!(cluster.routes("n1")[0].tier, Some(tier), "{numbers}");
    }
}

#[test]
fn only_endpoints_that_can_be_used_count() {
    let mut some = endpoints();
    some[1] = some[1].clone().unready();
    let cluster = Cluster::of(nodes(), least(&format!("{H},{Z},*"), "1,3"), some);
    assert_eq!(cluster.routes("n3")[0].tier, Some(0));
    assert_eq!(cluster.routes("n2")[0].tier, Some(2), "two in the zone are ready, not three");
}

#[test]
fn strict_keys_without_enough_endpoints_refuse_and_the_star_takes_what_there_is() {
    let strict = Cluster::of(nodes(), least(Z, "2"), endpoints());
    assert_eq!(strict.routes("n4")[0].verdict, Verdict::Refuse);
    assert_eq!(strict.routes("n1")[0].verdict, Verdict::Route);
    let soft = least(&format!("{H},*"), "2");
    let soft = Cluster::of(nodes(), soft, vec![endpoint("10.0.0.4", "n4")]);
    assert_eq!(soft.chosen("n1"), ["10.0.0.4"]);
    assert_eq!(soft.chosen("n4"), ["10.0.0.4"]);
}

#[test]
fn spilled_connections_go_to_the_next_wider_key_that_adds_anything() {
    let cluster = Cluster::of(nodes(), spilling(WATERFALL, "5%"), endpoints());
    // n1: its rack adds no endpoint, its zone does.
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1"]);
    assert_eq!(wider(&cluster, "n1"), (vec!["10.0.0.2".into(), "10.0.0.3".into()], 500));
    // n2's tier is its rack.
    assert_eq!(cluster.chosen("n2"), ["10.0.0.1"]);
    assert_eq!(wider(&cluster, "n2").0, ["10.0.0.2", "10.0.0.3"]);
    // n4: no key before the star matches.
    assert_eq!(wider(&cluster, "n4").0, ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    // Endpoints for spilled connections are not among the merely serving ones.
    assert!(cluster.routes("n4")[0].serving.is_empty());
    let all = Cluster::of(nodes(), spilling(WATERFALL, "100%"), endpoints());
    assert_eq!(wider(&all, "n4").1, SPILL_ONE);
}

#[test]
fn nothing_spills_where_no_key_is_wider() {
    for (keys, share) in [(Z, "5%"), ("*", "100%"), (WATERFALL, "0%")] {
        let cluster = Cluster::of(nodes(), spilling(keys, share), endpoints());
        assert_eq!(wider(&cluster, "n1"), (vec![], 0), "{keys} {share}");
    }
    let cluster = Cluster::of(nodes(), spilling(WATERFALL, "5%"), endpoints()[..1].to_vec());
    assert_eq!(wider(&cluster, "n1"), (vec![], 0), "the tier has all there is");
}

#[test]
fn both_together_skip_the_small_tier_and_spill_from_the_next() {
    let both = least(WATERFALL, "2").asking(|policy| policy.spill = Some("0.5%".into()));
    let cluster = Cluster::of(nodes(), both, endpoints());
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    assert_eq!(wider(&cluster, "n1"), (vec!["10.0.0.4".into()], 50));
}

#[test]
fn what_refines_keys_is_ignored_alone_when_it_breaks_a_rule() {
    let service = least(H, "none").asking(|policy| policy.spill = Some("120%".into()));
    let cluster = Cluster::of(nodes(), service, endpoints());
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1"], "the keys hold");
    cluster.decided("n1", |decision| {
        let fields: Vec<_> = decision.policy.ignored.iter().map(|one| one.what).collect();
        assert_eq!(fields, [Annotation::MinEndpoints, Annotation::Spill].map(Field::Of));
        let text: Vec<_> = decision.policy.ignored.iter().map(ToString::to_string).collect();
        assert!(text[0].starts_with("annotation topo-lb.io/min-endpoints is ignored: "));
        assert!(text[1].starts_with("annotation topo-lb.io/spill is ignored: `120%` is more"));
    });
}

#[test]
fn without_keys_there_is_nothing_to_refine() {
    for service in [service(), openyurt(H), keyed("*,*")] {
        let service = service.asking(|policy| {
            policy.min_endpoints = Some("2".into());
            policy.spill = Some("5%".into());
        });
        let cluster = Cluster::of(nodes(), service, endpoints());
        assert_eq!(wider(&cluster, "n1"), (vec![], 0));
        cluster.decided("n1", |decision| {
            let rules = decision.policy.ignored.iter().map(|one| &one.rule);
            assert_eq!(rules.filter(|rule| **rule == Rule::WithoutKeys).count(), 2);
        });
    }
    // They make no policy of their own.
    let service = asking(|policy| policy.min_endpoints = Some("2".into()));
    let state = Cluster::of(nodes(), service, endpoints()).state("n1");
    assert!(topology::routes(&state, "n1", Scope::OptIn, None, &id("svc")).is_empty());
}

#[test]
fn every_tier_says_how_many_it_has_and_needs() {
    let cluster = Cluster::of(nodes(), least(&format!("{H},room,{Z},*"), "2"), endpoints());
    cluster.decided("n1", |decision| {
        let tiers = decision.choices[0].tiers.iter();
        let seen: Vec<_> =
            tiers.map(|tier| (tier.key, tier.own, tier.endpoints, tier.min_endpoints)).collect();
        assert_eq!(
            seen,
            [(H, Some("n1"), 1, 2), ("room", None, 0, 2), (Z, Some("a"), 3, 2), ("*", None, 4, 1)]
        );
    });
}

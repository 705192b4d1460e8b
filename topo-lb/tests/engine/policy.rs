//! Where a policy comes from, why it is ignored, and which Services are in scope.

use topo_lb_core::cluster::service::Skipped;
use topo_lb_core::cluster::{LocalAddresses, Service, ServiceId, Update};
use topo_lb_core::topology::validation::Rule;
use topo_lb_core::topology::{self, Bypass, PolicyKind, PolicySource, Scope, Verdict};

use crate::made::{
    Asking, Cluster, H, Z, asking, endpoint, id, keyed, node, openyurt, service, with_field,
};

fn cluster(service: Service) -> Cluster {
    let nodes = vec![node("n1", &[(H, "n1"), (Z, "a")]), node("n2", &[(H, "n2"), (Z, "a")])];
    Cluster::of(nodes, service, vec![endpoint("10.0.0.1", "n1"), endpoint("10.0.0.2", "n2")])
}

fn broken(service: Service) -> Rule {
    let cluster = cluster(service);
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1", "10.0.0.2"], "served as if it were not there");
    cluster.decided("n1", |decision| {
        assert_eq!(decision.policy.source, PolicySource::None);
        assert_eq!(decision.policy.kind, PolicyKind::None);
        assert_eq!(decision.policy.ignored.len(), 1);
        let sentence = decision.policy.ignored[0].to_string();
        assert!(sentence.contains("topo-lb.io/topology-keys is ignored: "), "{sentence}");
        assert!(sentence.len() < 500 && !sentence.contains('\n'), "{sentence}");
        decision.policy.ignored[0].rule.clone()
    })
}

#[test]
fn every_rule_about_keys_ignores_them_whole_and_says_which_it_was() {
    let many = |count: usize| (0..count).map(|at| format!("k{at}")).collect::<Vec<_>>().join(",");
    for (keys, rule) in [
        (&*many(17), Rule::TooManyKeys { count: 17 }),
        (&many(100_000), Rule::TooManyKeys { count: 100_000 }),
        (&format!("*,{Z}"), Rule::AnyNotLast { position: 1, count: 2 }),
        ("*,*", Rule::AnyNotLast { position: 1, count: 2 }),
        ("a,,b", Rule::EmptyKey { position: 2, count: 3 }),
        ("a,", Rule::EmptyKey { position: 2, count: 2 }),
        (",", Rule::EmptyKey { position: 1, count: 2 }),
        ("", Rule::Empty),
        (" ", Rule::Empty),
        ("\t\n", Rule::Empty),
        ("a,b,c, b ,b", Rule::Duplicate { key: "`b`".into(), first: 2, second: 4 }),
    ] {
        assert_eq!(broken(keyed(keys)), rule, "{keys:?}");
    }
    for key in ["a b", "A/a", "topology.kubernetes.io/", "a\0b", "**", "\u{202e}"] {
        let rule = broken(keyed(&format!("x,{key}")));
        assert!(matches!(rule, Rule::NotALabel { position: 2, .. }), "{key:?}: {rule:?}");
    }
    let local = Service { external_local: true, ..keyed(Z) };
    assert_eq!(broken(local), Rule::WithExternalLocal);
}

#[test]
fn the_field_is_held_to_the_same_rules() {
    for (keys, rule) in [
        (vec!["*", Z], Rule::AnyNotLast { position: 1, count: 2 }),
        (vec![Z, ""], Rule::EmptyKey { position: 2, count: 2 }),
        (vec!["k"; 17], Rule::TooManyKeys { count: 17 }),
        (vec![Z, Z], Rule::Duplicate { key: format!("`{Z}`"), first: 1, second: 2 }),
    ] {
        cluster(with_field(&keys)).decided("n1", |decision| {
            assert_eq!(decision.policy.source, PolicySource::None);
            assert_eq!(decision.policy.ignored[0].rule, rule);
            let sentence = decision.policy.ignored[0].to_string();
            assert!(sentence.starts_with("field spec.topologyKeys is ignored"), "{sentence}");
        });
    }
}

#[test]
fn sixteen_keys_and_the_longest_label_are_allowed() {
    let prefix = ["p"; 127].join(".");
    let mut keys: Vec<_> = (0..15).map(|at| format!("{prefix}/{at}{}", "n".repeat(61))).collect();
    keys.push("*".into());
    cluster(keyed(&keys.join(" , "))).decided("n1", |decision| {
        assert_eq!(decision.policy.ignored, []);
        assert_eq!(decision.policy.keys, keys);
    });
}

#[test]
fn annotations_of_any_length_and_any_characters_only_ever_break_a_rule() {
    let texts = [
        "x".repeat(1 << 20),
        ",".repeat(1 << 20),
        " ".repeat(1 << 20),
        "/".repeat(1 << 20),
        "*".repeat(1 << 20),
        "💥,".repeat(16),
        "\u{0}\u{1}\u{7f}\u{feff}\u{2028}".to_owned(),
        "\u{1b}[2J".to_owned(),
    ];
    for text in texts {
        let service = asking(|policy| {
            policy.topology_keys = Some(text.as_str().into());
            policy.openyurt = Some(text.as_str().into());
            policy.spec_topology_keys = vec![text.as_str().into()];
        });
        cluster(service).decided("n1", |decision| {
            assert_eq!(decision.policy.ignored.len(), 3);
            for ignored in &decision.policy.ignored {
                let sentence = ignored.to_string();
                assert!(sentence.len() < 1_000, "{} bytes", sentence.len());
                assert!(sentence.chars().all(|one| !one.is_control()), "{sentence:?}");
            }
        });
    }
}

#[test]
fn the_first_source_that_keeps_the_rules_wins() {
    use PolicySource::{OpenYurt, SpecTopologyKeys, TopologyKeys};
    let none = (PolicySource::None, PolicyKind::None);
    // Annotation, OpenYurt's annotation and field; the source and kind in force; how many are ignored.
    for (keys, openyurt, field, wanted, ignored) in [
        (Some(H), "openyurt.io/nodepool", Z, (TopologyKeys, PolicyKind::Keys), 0),
        (Some("*,x"), "openyurt.io/nodepool", Z, (OpenYurt, PolicyKind::OpenYurt), 1),
        (Some("*,x"), "x", Z, (SpecTopologyKeys, PolicyKind::Keys), 2),
        (Some("*,x"), "x", "", none, 3),
        (None, "x", "", none, 2),
    ] {
        let service = asking(|policy| {
            policy.topology_keys = keys.map(Into::into);
            policy.openyurt = Some(openyurt.into());
            policy.spec_topology_keys = vec![field.into()];
        });
        cluster(service).decided("n1", |decision| {
            assert_eq!((decision.policy.source, decision.policy.kind), wanted);
            assert_eq!(decision.policy.ignored.len(), ignored);
        });
    }
}

#[test]
fn an_invalid_annotation_leaves_other_services_alone() {
    let mut cluster = cluster(keyed(H));
    cluster.services.push(Service { id: id("bad"), ..keyed("*,*") });
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1"]);
}

#[test]
fn external_traffic_policy_local_excludes_keys_but_not_openyurt() {
    let service = Service { external_local: true, ..openyurt(H) };
    assert_eq!(cluster(service).chosen("n1"), ["10.0.0.1"]);
}

#[test]
fn what_has_no_cluster_ip_has_no_decision() {
    for skipped in [
        Skipped::Headless,
        Skipped::ExternalName,
        Skipped::OtherProxy,
        Skipped::HeadlessLabel,
        Skipped::NoClusterIp,
    ] {
        let state = cluster(Service { skipped: Some(skipped), ..service() }).state("n1");
        assert_eq!(topology::decide(&state, "n1", Scope::All, &id("svc")), []);
        assert_eq!(topology::routes(&state, "n1", Scope::All, None, &id("svc")), []);
    }
    let state = cluster(Service { cluster_ips: Vec::new(), ..service() }).state("n1");
    assert_eq!(topology::decide(&state, "n1", Scope::All, &id("svc")), []);
    assert_eq!(topology::routes(&state, "n1", Scope::All, None, &id("nowhere")), []);
}

#[test]
fn opt_in_leaves_services_without_a_policy_alone() {
    for (service, verdict) in [
        (service(), Verdict::Bypass),
        (keyed(H), Verdict::Route),
        (keyed("rack"), Verdict::Refuse),
        // As if the annotation were not there.
        (keyed("*,x"), Verdict::Bypass),
        (asking(|policy| policy.hints_asked = true), Verdict::Route),
        (openyurt(H), Verdict::Route),
        (with_field(&[Z]), Verdict::Route),
    ] {
        let state = cluster(service).state("n1");
        let decision = topology::decide(&state, "n1", Scope::OptIn, &id("svc")).remove(0);
        let routes = topology::routes(&state, "n1", Scope::OptIn, None, &id("svc"));
        assert_eq!(routes.is_empty(), decision.verdict() == Verdict::Bypass);
        if routes.is_empty() {
            assert!(decision.endpoints.iter().all(|one| !one.selected()));
        }
        assert_eq!(decision.verdict(), verdict);
    }
}

#[test]
fn a_service_that_asks_for_it_is_left_alone_and_nothing_else_is_a_yes_or_a_no() {
    let handle = |text: &str| cluster(keyed(H).asking(|policy| policy.handle = Some(text.into())));
    for no in ["false", " false "] {
        assert!(handle(no).routes("n1").is_empty());
        handle(no).decided("n1", |decision| {
            assert_eq!(decision.verdict(), Verdict::Bypass);
            assert_eq!(decision.choices[0].bypass, Some(Bypass::Annotation));
            assert_eq!(decision.policy.ignored, []);
            assert!(decision.endpoints.iter().all(|one| !one.selected()));
        });
    }
    assert_eq!(handle("true").chosen("n1"), ["10.0.0.1"]);
    for neither in ["", "no", "False", "0", &"x".repeat(1 << 20)] {
        assert_eq!(handle(neither).chosen("n1"), ["10.0.0.1"], "as if it were not there");
        handle(neither).decided("n1", |decision| {
            let sentence = decision.policy.ignored[0].to_string();
            assert!(
                sentence.starts_with("annotation topo-lb.io/handle is ignored: "),
                "{sentence}"
            );
            assert!(sentence.len() < 500, "{sentence}");
        });
    }
}

#[test]
fn a_clusterip_that_a_device_of_this_node_has_gets_no_route() {
    let mut dual = service();
    dual.cluster_ips.push("fd00::1".parse().unwrap());
    let mut state = cluster(dual).state("n1");
    let local = |address: &str| LocalAddresses {
        by_device: [(address.parse().unwrap(), "nodelocaldns".into())].into(),
        primary: Vec::new(),
    };
    let routes = |state: &_| topology::routes(state, "n1", Scope::All, None, &id("svc"));
    assert_eq!(routes(&state).len(), 2);

    let changed = state.apply(Update::LocalAddresses(local("10.96.0.1")), "n1");
    assert_eq!(changed.services.into_iter().collect::<Vec<_>>(), [id("svc")]);
    let left = routes(&state);
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].frontends[0].1.address, "fd00::1".parse::<std::net::IpAddr>().unwrap());
    let decisions = topology::decide(&state, "n1", Scope::All, &id("svc"));
    let four = &decisions[0].choices[0];
    assert_eq!(four.verdict, Verdict::Bypass);
    assert!(matches!(four.bypass, Some(Bypass::Local { device: "nodelocaldns", .. })));

    // An address that is no ClusterIP, then no address.
    let changed = state.apply(Update::LocalAddresses(local("10.0.0.1")), "n1");
    assert_eq!(changed.services.len(), 1);
    assert_eq!(routes(&state).len(), 2);
    assert_eq!(
        state.apply(Update::LocalAddresses(LocalAddresses::default()), "n1").services.len(),
        0
    );
}

#[test]
fn a_service_cannot_change_what_another_ones_slices_are() {
    let mut cluster = cluster(service());
    let mut stranger = cluster.slices[0].clone();
    stranger.id.name = "stranger".into();
    stranger.service = Some(ServiceId { namespace: "x".into(), name: "svc".into() });
    stranger.endpoints = vec![endpoint("10.9.9.9", "n1")];
    cluster.slices.push(stranger);
    assert_eq!(cluster.chosen("n1"), ["10.0.0.1", "10.0.0.2"]);
}

#[test]
fn what_has_no_policy_is_left_alone_only_in_opt_in() {
    let count = |service, scope| {
        let cluster = Cluster::of(Vec::new(), service, Vec::new());
        topology::without_policy(&cluster.state("n1"), "n1", scope)
    };
    assert_eq!([Scope::All, Scope::OptIn].map(|scope| count(service(), scope)), [0, 1]);
    assert_eq!(count(keyed("*"), Scope::OptIn), 0);
    let left = service().asking(|policy| policy.handle = Some("false".into()));
    assert_eq!(count(left, Scope::OptIn), 0, "it says so itself");
    assert_eq!(count(Service::default(), Scope::OptIn), 0, "no ClusterIP");
}

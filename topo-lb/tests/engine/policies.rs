//! Policies for many Services: which object decides, and what is said of the others.

use std::sync::Arc;

use topo_lb_core::cluster::selector::{Operator, Requirement, Selector};
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{Created, Namespace, PolicyId, Service, TopologyPolicy};
use topo_lb_core::explain;
use topo_lb_core::lint::{self, Rule};
use topo_lb_core::topology::{self, NodesByLabel, Origin, Scope, Verdict};

use crate::made::{
    Asking, Cluster, H, Z, endpoint, id, keyed, labels, node, of_cluster, policy, service,
};

/// One endpoint on n1 in zone a, two in zone b.
fn cluster(service: Service) -> Cluster {
    let nodes = vec![
        node("n1", &[(H, "n1"), (Z, "a")]),
        node("n2", &[(H, "n2"), (Z, "b")]),
        node("n3", &[(H, "n3"), (Z, "b")]),
    ];
    let endpoints =
        vec![endpoint("10.0.0.1", "n1"), endpoint("10.0.0.2", "n2"), endpoint("10.0.0.3", "n3")];
    Cluster::of(nodes, service, endpoints)
}

fn says(name: &str, keys: &str) -> TopologyPolicy {
    policy(name, |policy| policy.spec_topology_keys = keys.split(',').map(Into::into).collect())
}

fn annotated(keys: &str) -> Namespace {
    Namespace { name: "default".into(), policy: keyed(keys).policy, ..Namespace::default() }
}

fn wants(key: &str, value: &str) -> Selector {
    let values = vec![value.into()];
    Selector(vec![Requirement { key: key.into(), operator: Operator::In, values }])
}

/// What decides for `svc`, by what it says, and what is passed over.
fn decides(cluster: &Cluster) -> (String, Vec<String>) {
    cluster.decided("n2", |decision| {
        let policy = &decision.policy;
        let passed_over = policy.passed_over.iter().map(ToString::to_string).collect();
        (format!("{}: {}", policy.origin, policy.keys.join(",")), passed_over)
    })
}

#[test]
fn the_strongest_that_says_keys_decides_and_the_others_are_passed_over() {
    let mut all = cluster(keyed(&format!("{H},*")));
    all.policies = vec![says("near", Z)];
    all.namespaces = vec![annotated("*")];
    all.cluster_policies = vec![of_cluster(says("default", H))];
    let [policy, namespace, of_all] =
        ["TopologyPolicy default/near", "Namespace default", "ClusterTopologyPolicy default"];
    let passed = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
    assert_eq!(
        decides(&all),
        (format!("the Service: {H},*"), passed(&[policy, namespace, of_all]))
    );
    all.services = vec![service()];
    assert_eq!(decides(&all), (format!("{policy}: {Z}"), passed(&[namespace, of_all])));
    assert_eq!(all.chosen("n2"), ["10.0.0.2", "10.0.0.3"]);
    all.policies.clear();
    assert_eq!(decides(&all), (format!("{namespace}: *"), passed(&[of_all])));
    assert_eq!(all.chosen("n2"), ["10.0.0.1", "10.0.0.2", "10.0.0.3"]);
    all.namespaces.clear();
    assert_eq!(decides(&all), (format!("{of_all}: {H}"), Vec::new()));
    assert_eq!(all.chosen("n2"), ["10.0.0.2"]);
    all.cluster_policies.clear();
    assert_eq!(decides(&all), ("the Service: ".to_owned(), Vec::new()));
}

#[test]
fn precedence_then_age_then_name_ranks_policies() {
    let aged = |name: &str, precedence, created: Option<&str>| TopologyPolicy {
        precedence,
        created: created.map_or(Created::UNKNOWN, Into::into),
        ..says(name, Z)
    };
    let mut all = cluster(service());
    all.policies = vec![
        aged("e", 0, None),
        aged("d", 0, None),
        aged("c", 0, Some("2026-02-01T00:00:00Z")),
        aged("b", 0, Some("2026-01-01T00:00:00Z")),
        aged("a", 7, None),
        aged("f", -1, Some("2020-01-01T00:00:00Z")),
    ];
    let (first, rest) = decides(&all);
    assert_eq!(first, format!("TopologyPolicy default/a: {Z}"));
    let names: Vec<_> = rest.iter().map(|name| name.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["b", "c", "d", "e", "f"]);
}

#[test]
fn policies_hold_for_what_they_select_alone() {
    let mut all = cluster(Service { labels: labels(&[("app", "web")]), ..service() });
    let here = TopologyPolicy { services: wants("app", "web"), ..says("web", Z) };
    let other = PolicyId { namespace: "other".into(), name: "web".into() };
    for (policy, selects) in [
        (here.clone(), true),
        (TopologyPolicy { services: wants("app", "db"), ..here.clone() }, false),
        (TopologyPolicy { id: other, ..here }, false),
    ] {
        all.policies = vec![policy];
        assert_eq!(decides(&all).0.starts_with("TopologyPolicy"), selects, "{:?}", all.policies);
    }
    all.policies.clear();
    let by_name = wants("kubernetes.io/metadata.name", "default");
    for (namespaces, known, selects) in [
        (Selector::default(), false, true),
        // Kubernetes before 1.21 has no such label, and a file may lack the Namespace.
        (by_name.clone(), false, true),
        (by_name, true, true),
        (wants("env", "prod"), false, false),
        (wants("env", "prod"), true, true),
        (wants("env", "test"), true, false),
    ] {
        let namespace = Namespace { labels: labels(&[("env", "prod")]), ..annotated("") };
        let namespace = Namespace { policy: Default::default(), ..namespace };
        all.namespaces = if known { vec![namespace] } else { Vec::new() };
        let policy = TopologyPolicy { namespaces, ..says("all", Z) };
        all.cluster_policies = vec![of_cluster(policy)];
        assert_eq!(decides(&all).0.starts_with("Cluster"), selects, "{:?}", all.cluster_policies);
    }
}

#[test]
fn what_refines_keys_is_taken_from_the_object_of_the_keys_or_a_stronger_one() {
    let spilling = |text: &str| policy("p", |policy| policy.spill = Some(text.into()));
    let spill =
        |all: &Cluster| all.decided("n2", |it| it.choices[0].wider.map(|it| it.share.parts()));
    // A stronger object refines weaker keys.
    let mut all = cluster(service().asking(|policy| policy.spill = Some("7%".into())));
    all.cluster_policies = vec![of_cluster(says("default", &format!("{Z},*")))];
    assert_eq!(spill(&all), Some(700));
    all.services = vec![service()];
    all.policies = vec![spilling("8%")];
    assert_eq!(spill(&all), Some(800));
    // A weaker one does not refine stronger keys, and that is no fault.
    let mut all = cluster(keyed(&format!("{Z},*")));
    all.cluster_policies = vec![of_cluster(spilling("9%"))];
    assert_eq!(spill(&all), None);
    assert!(all.decided("n2", |decision| decision.policy.ignored.is_empty()));
}

#[test]
fn a_broken_policy_is_passed_over_and_is_no_fault_of_its_services() {
    let mut all = cluster(service());
    all.policies = vec![says("broken", &format!("*,{Z}"))];
    all.cluster_policies = vec![of_cluster(says("default", Z))];
    assert_eq!(decides(&all).0, format!("ClusterTopologyPolicy default: {Z}"));
    let state = all.state("n1");
    assert_eq!(topology::ignored(&state, &id("svc")), None);
    let sentence = all.decided("n1", |decision| decision.policy.ignored[0].to_string());
    let begin =
        "TopologyPolicy default/broken: field spec.topologyKeys is ignored: `*` is key 1 of 2";
    assert!(sentence.starts_with(begin), "{sentence}");
    // Once for the policy, and not for each of its Services.
    let findings = lint::findings(&state, Scope::All);
    let ignored: Vec<_> = findings.iter().filter(|it| it.rule == Rule::Ignored).collect();
    assert_eq!(ignored.len(), 1);
    assert_eq!((&*ignored[0].namespace, &*ignored[0].name), ("default", "broken"));
    let origin = Origin::Policy(all.policies[0].id.clone());
    assert_eq!(topology::broken(&origin, &all.policies[0].policy).len(), 1);
}

#[test]
fn keys_from_above_leave_external_traffic_policy_local_in_force() {
    let mut all = cluster(Service { external_local: true, ..service() });
    all.namespaces = vec![annotated(Z)];
    assert_eq!(decides(&all).0, format!("Namespace default: {Z}"));
    assert_eq!(all.chosen("n2"), ["10.0.0.2", "10.0.0.3"]);
    assert!(all.decided("n2", |decision| decision.policy.ignored.is_empty()));
}

#[test]
fn lint_names_policies_that_select_nothing_or_whose_key_no_node_has() {
    let mut all = cluster(service());
    let nothing = TopologyPolicy { services: wants("app", "db"), ..says("nothing", Z) };
    all.cluster_policies = vec![of_cluster(nothing), of_cluster(says("rack", "rack,*"))];
    let findings = lint::findings(&all.state("n1"), Scope::All);
    let seen: Vec<_> = findings.iter().map(|one| (&*one.name, one.rule)).collect();
    assert_eq!(seen, [("nothing", Rule::SelectsNone), ("rack", Rule::UnknownKey)]);
}

#[test]
fn explain_names_the_object_that_decides_and_those_passed_over() {
    let mut all = cluster(service());
    all.namespaces = vec![annotated(Z)];
    all.cluster_policies = vec![of_cluster(says("default", "*"))];
    let report = explain::report(&all.state("n2"), "n2", Scope::All, &[id("svc")]);
    let policy = serde_json::to_value(&report.services[0].policy).unwrap();
    assert_eq!(policy["source"], "Namespace");
    assert_eq!(policy["object"], "Namespace default");
    assert_eq!(policy["passedOver"], serde_json::json!(["ClusterTopologyPolicy default"]));
    let text = explain::table(&report, false);
    assert!(text.contains(&format!("policy    Namespace default: {Z}\n")), "{text}");
    assert!(text.contains("over      ClusterTopologyPolicy default\n"), "{text}");
}

/// A policy for zones, on trial.
fn tried(change: impl FnOnce(&mut PolicySources)) -> TopologyPolicy {
    let mut tried = says("near", Z);
    change(Arc::make_mut(&mut tried.policy));
    tried
}

#[test]
fn a_policy_that_observes_changes_nothing_and_explain_says_what_would_be() {
    let mut all = cluster(service());
    all.policies = vec![tried(|policy| policy.mode = Some("observe".into()))];
    all.cluster_policies = vec![of_cluster(says("default", "*"))];
    assert_eq!(all.chosen("n2").len(), 3);
    let report = explain::report(&all.state("n2"), "n2", Scope::All, &[id("svc")]);
    let text = explain::table(&report, false);
    for line in [
        "  policy    ClusterTopologyPolicy default: *\n",
        "  trial     TopologyPolicy default/near holds on no node (mode: observe)\n",
        "  would     route: 2 of 3 endpoints share this node's topology.kubernetes.io/zone=b\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    // A Service can observe its own annotations, too.
    let mut own = cluster(keyed(Z).asking(|policy| policy.mode = Some("observe".into())));
    assert_eq!(own.chosen("n2").len(), 3);
    own.services = vec![keyed(Z).asking(|policy| policy.mode = Some("enforce".into()))];
    assert_eq!(own.chosen("n2").len(), 2);
}

#[test]
fn a_ramp_holds_on_more_nodes_as_it_grows_and_never_leaves_one() {
    let mut all = cluster(service());
    let names: Vec<_> = (0..300).map(|at| format!("m{at}")).collect();
    all.nodes.extend(names.iter().map(|name| node(name, &[(H, name), (Z, "b")])));
    let mut before = Vec::new();
    for ramp in 0..=20_u16 {
        all.policies = vec![tried(|policy| policy.ramp = Some(format!("{}%", ramp * 5).into()))];
        let state = all.state("n1");
        let holds = |name: &&str| {
            let route = &topology::routes(&state, name, Scope::All, None, &id("svc"))[0];
            route.endpoints.len() == 2
        };
        let within: Vec<_> = names.iter().map(|name| &**name).filter(holds).collect();
        assert!(before.iter().all(|name| within.contains(name)), "{ramp}");
        assert!(within.len().abs_diff(usize::from(ramp) * 15) < 25, "{ramp}: {}", within.len());
        // Nodes that are treated as alike are all on the same side.
        let decisions = topology::decide(&state, "", Scope::All, &id("svc"));
        let service = state.service(&id("svc")).unwrap();
        for alike in NodesByLabel::of(&state).alike(service, &decisions, &[]) {
            let held = alike.iter().filter(|name| within.contains(name)).count();
            assert!(held == 0 || held == alike.len(), "{ramp}: {alike:?}");
        }
        // A table for each policy.
        let spreads = explain::spread(&state, Scope::All, &id("svc"));
        let rows: Vec<_> = spreads.iter().map(|spread| spread.nodes.len()).collect();
        assert!(
            (rows.len(), rows.iter().sum()) == (2 - usize::from(ramp % 20 == 0), 303),
            "{rows:?}"
        );
        before = within;
    }
    assert_eq!(before.len(), 300);
}

#[test]
fn a_wrong_mode_or_ramp_holds_nowhere_and_is_said() {
    let wrong = [
        tried(|policy| policy.mode = Some("obsrve".into())),
        tried(|policy| policy.ramp = Some("a tenth".into())),
    ];
    for policy in wrong {
        let mut all = cluster(service());
        all.policies = vec![policy];
        assert_eq!(all.chosen("n2").len(), 3);
        let sentence = all.decided("n2", |decision| decision.policy.ignored[0].to_string());
        assert!(sentence.contains(" is wrong, so nothing here holds: `"), "{sentence}");
        let findings = lint::findings(&all.state("n1"), Scope::All);
        assert!(findings.iter().any(|it| it.rule == Rule::Ignored && it.message == sentence));
    }
}

#[test]
fn lint_reports_what_policies_on_trial_will_do() {
    let mut all = cluster(service());
    all.nodes.push(node("n4", &[(H, "n4"), (Z, "c")]));
    all.policies = vec![tried(|policy| policy.mode = Some("observe".into()))];
    let findings = lint::findings(&all.state("n1"), Scope::All);
    let [refused] = &findings[..] else { panic!("{findings:?}") };
    assert_eq!((refused.rule, &refused.nodes[..]), (Rule::Refused, &["n4".to_owned()][..]));
}

#[test]
fn a_policy_can_leave_services_to_kube_proxy_and_one_can_be_taken_back() {
    let mut all = cluster(service());
    all.namespaces = vec![annotated(Z)];
    all.cluster_policies =
        vec![of_cluster(policy("off", |policy| policy.handle = Some("false".into())))];
    let verdict = |all: &Cluster| all.decided("n1", |decision| decision.verdict());
    assert_eq!(verdict(&all), Verdict::Bypass);
    all.services = vec![service().asking(|policy| policy.handle = Some("true".into()))];
    assert_eq!(verdict(&all), Verdict::Route);
}

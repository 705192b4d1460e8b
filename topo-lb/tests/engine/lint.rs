//! The findings of lint match the decisions on every node.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::test_runner::{Config, TestRunner};
use topo_lb::cluster::State;
use topo_lb::lint::{self, Finding, Rule, Severity};
use topo_lb::topology::cause::{Cause, HintsOff};
use topo_lb::topology::{self, Scope, Verdict};

use crate::made::{Cluster, H, Otherwise, Z, endpoint, id, keyed, node, service};
use crate::random;

fn rules(findings: &[Finding]) -> Vec<Rule> {
    findings.iter().map(|one| one.rule).collect()
}

fn nodes(findings: &[Finding], rule: Rule) -> BTreeSet<String> {
    let of_rule = findings.iter().filter(|one| one.rule == rule);
    of_rule.flat_map(|one| one.nodes.iter().cloned()).collect()
}

/// Computes the findings node by node, without grouping nodes.
fn by_hand(state: &State) -> [BTreeSet<String>; 3] {
    let [mut refused, mut few, mut off] = <[BTreeSet<String>; 3]>::default();
    for (node, _) in state.nodes() {
        for decision in topology::decide(state, node, Scope::All, &id("svc")) {
            for choice in &decision.choices {
                let topology_is_to_blame =
                    choice.usable > 0 || matches!(choice.cause, Cause::NoneHere);
                if choice.verdict == Verdict::Refuse && topology_is_to_blame {
                    refused.insert(node.to_owned());
                }
                if choice
                    .tiers
                    .iter()
                    .any(|tier| (1..usize::from(tier.min_endpoints)).contains(&tier.endpoints))
                {
                    few.insert(node.to_owned());
                }
                if matches!(choice.cause, Cause::HintsOff(HintsOff::Unhinted(_) | HintsOff::NoZone))
                {
                    off.insert(node.to_owned());
                }
            }
        }
    }
    [refused, few, off]
}

#[test]
fn nodes_that_look_alike_to_a_service_are_alike() {
    let config = Config { cases: 4_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&random::tapes(280), |tape| {
        let (cluster, _) = random::cluster(&tape);
        let state = cluster.state("");
        let findings = lint::findings(&state);
        let [refused, few, off] = by_hand(&state);
        assert_eq!(nodes(&findings, Rule::Refused), refused);
        assert_eq!(nodes(&findings, Rule::TooFew), few);
        assert_eq!(nodes(&findings, Rule::HintsOff), off);
        assert!(findings.is_sorted());
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_cluster_in_order_has_no_findings() {
    let nodes = vec![node("n1", &[(H, "n1"), (Z, "a")]), node("n2", &[(H, "n2"), (Z, "a")])];
    let endpoints = vec![endpoint("10.0.0.1", "n1"), endpoint("10.0.0.2", "n2")];
    for service in [service(), keyed(Z), keyed(&format!("{H},*"))] {
        let findings =
            lint::findings(&Cluster::of(nodes.clone(), service, endpoints.clone()).state(""));
        assert_eq!(findings, []);
    }
    assert_eq!(lint::table(&[], false), "Nothing found.\n");
}

#[test]
fn a_service_without_a_usable_endpoint_is_not_the_topologys_fault() {
    let nodes = vec![node("n1", &[(Z, "a")])];
    let cluster = Cluster::of(nodes, keyed(Z), vec![endpoint("10.0.0.1", "n1").unready()]);
    assert_eq!(lint::findings(&cluster.state("")), []);
}

#[test]
fn nothing_is_found_in_a_service_that_asks_to_be_left_alone() {
    for keys in ["a-label-that-no-node-has", "broken,,"] {
        let mut service = keyed(keys);
        let policy = Arc::make_mut(&mut service.policy);
        policy.handle = Some("false".into());
        policy.hints_asked = true;
        assert!(!topology::breaks_a_rule(&service), "{keys}");
        let nodes = vec![node("n1", &[(Z, "a")])];
        let cluster = Cluster::of(nodes, service, vec![endpoint("10.0.0.1", "nowhere")]);
        assert_eq!(lint::findings(&cluster.state("")), [], "{keys}");
    }
}

#[test]
fn the_endpoint_that_switches_hints_off_is_named() {
    let nodes = vec![node("n1", &[(Z, "a")]), node("n2", &[(Z, "a")])];
    let cluster = Cluster::of(
        nodes,
        service(),
        vec![endpoint("10.0.0.1", "n1").for_zones(&["a"]), endpoint("10.0.0.2", "n2")],
    );
    let findings = lint::findings(&cluster.state(""));
    assert_eq!(rules(&findings), [Rule::HintsOff]);
    assert!(findings[0].message.contains("10.0.0.2:9376"), "{}", findings[0].message);
    assert_eq!(findings[0].nodes, ["n1", "n2"]);
}

#[test]
fn an_endpoint_without_any_hint_is_blamed_before_one_that_has_node_hints() {
    let nodes = vec![node("n1", &[(Z, "a")])];
    let endpoints = vec![endpoint("10.0.0.1", "n1").for_nodes(&["n1"]), endpoint("10.0.0.2", "n2")];
    let findings = lint::findings(&Cluster::of(nodes, service(), endpoints).state(""));
    assert_eq!(rules(&findings), [Rule::HintsOff]);
    assert!(findings[0].message.contains("10.0.0.2:9376"), "{}", findings[0].message);
}

#[test]
fn what_could_not_be_read_is_found_under_its_own_name() {
    let manifests = b"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                      spec: {ports: [{port: 0}]}\n---\napiVersion: v1\nkind: Node\n\
                      metadata: {name: n1, labels: [a]}\n";
    let listing = topo_lb::source::file::parse("a.yaml".as_ref(), manifests).unwrap();
    let mut findings = lint::unreadable(&listing.faults);
    findings.sort();
    assert_eq!(rules(&findings), [Rule::Unreadable; 2]);
    let expected = "\
n1
  error    unreadable  a.yaml, document 2: Node n1: metadata.labels: invalid type: sequence, expected a map; \
                    this version of the object is ignored

shop/web
  error    unreadable  a.yaml, document 1: Service shop/web: spec.ports[0].port: 0 is not a port (1–65535); \
                    this version of the object is ignored

2 findings in 2 objects
";
    assert_eq!(lint::table(&findings, false), expected);
}

#[test]
fn two_services_with_one_address_are_found_and_the_first_has_it() {
    let mut second = service();
    second.id = id("later");
    let mut cluster =
        Cluster::of(vec![node("n1", &[])], service(), vec![endpoint("10.0.0.1", "n1")]);
    cluster.services.push(second);
    let findings = lint::findings(&cluster.state(""));
    assert_eq!(rules(&findings), [Rule::SharedFrontend]);
    assert_eq!(findings[0].name, "svc");
    assert!(findings[0].message.contains("10.96.0.1 TCP 80 is default/later's"));
}

#[test]
fn keys_that_no_node_carries_are_found_once_per_service() {
    let nodes = vec![node("n1", &[(H, "n1"), ("rack", "")])];
    let cluster = Cluster::of(nodes, keyed("rack,room,floor,*"), vec![endpoint("10.0.0.1", "n1")]);
    let findings = lint::findings(&cluster.state(""));
    assert_eq!(rules(&findings), [Rule::UnknownKey, Rule::UnknownKey]);
}

/// Twenty-five pools with strict keys; three of them have endpoints.
fn closed_loop() -> Cluster {
    let names: Vec<_> = (0..25).map(|pool| (format!("n{pool}"), format!("p{pool}"))).collect();
    let nodes = names.iter().map(|(name, pool)| node(name, &[("pool", pool)])).collect();
    let endpoints = ["n1", "n9", "n17"].iter().zip(1_u8..);
    let endpoints = endpoints.map(|(name, host)| endpoint(&format!("10.0.0.{host}"), name));
    Cluster::of(nodes, keyed("pool"), endpoints.collect())
}

fn severities(findings: &[Finding]) -> Vec<Severity> {
    findings.iter().map(|one| one.severity).collect()
}

#[test]
fn a_closed_loop_is_neither_an_error_nor_a_warning() {
    let findings = lint::findings(&closed_loop().state(""));
    assert_eq!(rules(&findings), [Rule::Refused]);
    assert_eq!(severities(&findings), [Severity::Info]);
    assert_eq!(findings[0].nodes.len(), 22);
}

#[test]
fn a_closed_loop_that_is_said_to_be_meant_is_no_finding() {
    let mut cluster = closed_loop();
    for service in &mut cluster.services {
        Arc::make_mut(&mut service.policy).refusal = Some("intended".into());
    }
    assert_eq!(lint::findings(&cluster.state("")), []);
    for service in &mut cluster.services {
        Arc::make_mut(&mut service.policy).refusal = Some("yes".into());
    }
    let findings = lint::findings(&cluster.state(""));
    assert_eq!(rules(&findings), [Rule::Ignored, Rule::Refused]);
    assert!(findings[0].message.contains("`yes` is not `intended`"), "{}", findings[0].message);
}

#[test]
fn a_service_that_refuses_every_node_is_an_error_though_refusals_are_meant() {
    let mut cluster = closed_loop();
    for service in &mut cluster.services {
        let policy = Arc::make_mut(&mut service.policy);
        (policy.topology_keys, policy.refusal) = (Some("misspelt".into()), Some("intended".into()));
    }
    let findings = lint::findings(&cluster.state(""));
    assert_eq!(rules(&findings), [Rule::UnknownKey, Rule::Refused]);
    assert_eq!(severities(&findings), [Severity::Warning, Severity::Error]);
    assert!(findings[1].message.contains("no node at all is served"), "{}", findings[1].message);
}

#[test]
fn a_pool_whose_endpoints_cannot_be_used_is_a_warning() {
    let nodes = vec![
        node("n1", &[("pool", "a")]),
        node("n2", &[("pool", "b")]),
        node("n3", &[("pool", "c")]),
    ];
    let endpoints = vec![endpoint("10.0.0.1", "n1"), endpoint("10.0.0.2", "n2").unready()];
    let findings = lint::findings(&Cluster::of(nodes, keyed("pool"), endpoints).state(""));
    let of = |severity| nodes_of(&findings, severity);
    assert_eq!(of(Severity::Warning), ["n2"]);
    assert_eq!(of(Severity::Info), ["n3"]);
}

fn nodes_of(findings: &[Finding], severity: Severity) -> Vec<&str> {
    let of_severity = findings.iter().filter(|one| one.severity == severity);
    of_severity.flat_map(|one| one.nodes.iter().map(String::as_str)).collect()
}

#[test]
fn a_service_that_refuses_every_node_is_an_error() {
    let nodes = vec![node("n1", &[("pool", "a")]), node("n2", &[("pool", "b")])];
    let endpoints = vec![endpoint("10.0.0.1", "elsewhere")];
    let findings = lint::findings(&Cluster::of(nodes, keyed("pool"), endpoints).state(""));
    let refused: Vec<_> = findings.iter().filter(|one| one.rule == Rule::Refused).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].severity, Severity::Error);
    assert!(refused[0].message.contains("no node at all is served"), "{}", refused[0].message);
}

/// The findings for these manifests.
fn meshes(manifests: &str, excluded: &[&str]) -> Vec<Finding> {
    let listing = topo_lb::source::file::parse("a.yaml".as_ref(), manifests.as_bytes()).unwrap();
    assert_eq!(listing.faults, []);
    let excluded: Vec<_> = excluded.iter().map(|&name| name.to_owned()).collect();
    lint::meshed(&listing.clients.unwrap_or_default().meshed, &excluded)
}

fn namespace(name: &str, metadata: &str) -> String {
    format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, {metadata}}}\n")
}

fn pod(namespace: &str, name: &str, metadata: &str) -> String {
    let metadata = format!("{{name: {name}, namespace: {namespace}, {metadata}}}");
    format!("---\napiVersion: v1\nkind: Pod\nmetadata: {metadata}\n")
}

#[test]
fn namespaces_of_a_mesh_are_named() {
    for (metadata, mesh) in [
        ("labels: {istio-injection: enabled}", "Istio"),
        ("labels: {istio.io/rev: 1-24}", "Istio"),
        ("labels: {istio.io/dataplane-mode: ambient}", "Istio ambient"),
        ("annotations: {linkerd.io/inject: enabled}", "Linkerd"),
        ("labels: {kuma.io/sidecar-injection: true}", "Kuma"),
    ] {
        let findings = meshes(&namespace("shop", metadata), &[]);
        assert_eq!(rules(&findings), [Rule::Meshed], "{metadata}");
        assert_eq!((findings[0].severity, &*findings[0].name), (Severity::Warning, "shop"));
        let message = &findings[0].message;
        assert!(message.contains(&format!("a mesh of {mesh} (")), "{message}");
        assert!(message.contains("--exclude-namespaces shop"), "{message}");
        // The annotation has no effect without its flag.
        assert!(message.contains("--exclude-annotated-pods"), "{message}");
        assert_eq!(meshes(&namespace("shop", metadata), &["other", "shop"]), []);
    }
    for metadata in [
        "labels: {istio-injection: disabled}",
        "labels: {istio.io/dataplane-mode: none}",
        "annotations: {linkerd.io/inject: disabled}",
        "labels: null",
    ] {
        assert_eq!(meshes(&namespace("shop", metadata), &[]), [], "{metadata}");
    }
}

#[test]
fn pods_of_a_mesh_are_one_finding_for_their_namespace() {
    let manifests = [
        pod("shop", "web-1", "annotations: {sidecar.istio.io/status: '{}'}"),
        pod("shop", "web-2", "labels: {security.istio.io/tlsMode: istio}"),
        pod("shop", "plain", "labels: {app: web}"),
        pod(
            "shop",
            "apart",
            "annotations: {linkerd.io/inject: enabled, topo-lb.io/exclude: 'true'}",
        ),
        namespace("bank", "labels: {istio-injection: enabled}"),
        pod("bank", "web-1", "labels: {security.istio.io/tlsMode: istio}"),
    ];
    let findings = meshes(&manifests.concat(), &[]);
    let names: Vec<_> = findings.iter().map(|one| &*one.name).collect();
    assert_eq!(names, ["bank", "shop"]);
    let message = &findings[1].message;
    assert!(message.starts_with("2 of its Pods are in a mesh of Istio ("), "{message}");
    assert!(message.contains("): web-1, web-2; "), "{message}");
}

//! The findings of lint match the decisions on every node.

use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::test_runner::{Config, TestRunner};
use topo_lb_core::cluster::{Endpoint, Exposure, Node, Service, State};
use topo_lb_core::lint::{self, Finding, Rule, Severity};
use topo_lb_core::topology::cause::{Cause, HintsOff};
use topo_lb_core::topology::{self, Scope, Verdict};

use crate::made::{Asking, Cluster, H, Otherwise, Z, endpoint, id, keyed, node, service};
use crate::random;

/// The findings for a cluster with one Service.
fn found(nodes: Vec<Node>, service: Service, endpoints: Vec<Endpoint>) -> Vec<Finding> {
    lint::findings(&Cluster::of(nodes, service, endpoints).state(""), Scope::All)
}

#[test]
fn what_agents_leave_alone_has_no_findings() {
    let all = || vec![endpoint("10.0.0.1", "n1")];
    let state = |service| Cluster::of(vec![node("n1", &[(H, "n1")])], service, all()).state("");
    let found = |service, scope| rules(&lint::findings(&state(service), scope));
    assert_eq!(found(keyed("no-such-key,*"), Scope::OptIn), [Rule::UnknownKey]);
    let mut unmatched = service();
    unmatched.ports[0].name = "other".into();
    assert_eq!(found(unmatched.clone(), Scope::All), [Rule::Unmatched]);
    assert_eq!(found(unmatched, Scope::OptIn), []);
    // Its policy is ignored, and that is why they leave it alone.
    let broken = || keyed("zon,,*");
    assert_eq!(found(broken(), Scope::OptIn), [Rule::Ignored]);
    let handled_by_nobody = broken().asking(|policy| policy.handle = Some("false".into()));
    assert_eq!(found(handled_by_nobody, Scope::OptIn), []);
}

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
        for decision in topology::decide_in_full(state, node, Scope::All, &id("svc")).unwrap() {
            for choice in &decision.choices {
                let topology_is_to_blame =
                    choice.usable > 0 || matches!(choice.cause, Cause::NoneHere);
                if choice.verdict == Verdict::Refuse && topology_is_to_blame {
                    refused.insert(node.to_owned());
                }
                if choice.tiers.iter().any(|tier| (1..tier.min_endpoints).contains(&tier.endpoints))
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

/// The message of the finding `exposed` about a Service with node port 30080, if there is one.
fn exposed(service: Service) -> Option<String> {
    let exposure = Exposure { node_ports: vec![30_080], ..Exposure::default() };
    let service = Service { exposure: Some(Arc::new(exposure)), ..service };
    let nodes = vec![node("here", &[(Z, "a")])];
    let found = found(nodes, service, vec![endpoint("10.0.0.1", "here")]);
    found.into_iter().find(|one| one.rule == Rule::Exposed).map(|one| one.message)
}

#[test]
fn a_strict_service_is_exposed_where_clients_outside_get_past_its_policy() {
    let said = exposed(keyed(Z)).expect("a finding");
    assert!(said.contains("by node port 30080, to any endpoint"), "{said}");
    assert!(said.ends_with("binds them to the policy, too"), "{said}");
    let own = |service: Service| {
        service.asking(|policy| policy.external_topology_keys = Some("*".into()))
    };
    let said = exposed(own(keyed(Z))).expect("a finding");
    assert!(said.ends_with("binds them to topo-lb.io/external-topology-keys"), "{said}");
    assert_eq!(exposed(keyed(&format!("{Z},*"))), None);
}

#[test]
fn zones_that_are_openyurts_pools_are_told_once_for_the_cluster() {
    const POOL: &str = "apps.openyurt.io/nodepool";
    let of = |name: &str, labels: &[(&str, &str)]| node(name, labels);
    let both = |name: &str, pool: &str| of(name, &[(POOL, pool), (Z, pool)]);
    let told = |nodes| {
        let found = found(nodes, service(), vec![endpoint("10.0.0.1", "a1")]);
        found.into_iter().filter(|one| one.rule == Rule::ZonesArePools).collect::<Vec<_>>()
    };
    // A Node in no pool has no zone either: OpenYurt gives one to those of a pool alone.
    let pools = || vec![both("a1", "a"), both("a2", "a"), both("b1", "b"), of("cloud", &[])];
    let [one] = &told(pools())[..] else { panic!("one finding") };
    assert_eq!((&*one.namespace, &*one.name, one.severity), ("", "Nodes", Severity::Info));
    assert!(one.message.contains("2 in all"), "{}", one.message);
    assert_eq!(one.nodes, [""; 0]);
    for other in [
        of("other", &[(POOL, "a"), (Z, "z")]),
        of("other", &[(POOL, "a")]),
        of("other", &[(Z, "z")]),
    ] {
        assert_eq!(told([pools(), vec![other.clone()]].concat()), [], "{other:?}");
    }
    assert_eq!(told(vec![of("a1", &[]), of("a2", &[])]), []);
}

#[test]
fn what_an_endpoint_of_an_unknown_node_can_match_depends_on_the_policy() {
    let said = |service| {
        let nodes = vec![node("here", &[(Z, "a")])];
        let found = found(nodes, service, vec![endpoint("10.0.0.1", "gone")]);
        found.into_iter().find(|one| one.rule == Rule::UnknownNode).expect("a finding").message
    };
    assert!(
        said(keyed(Z)).ends_with("has no labels: only kubernetes.io/hostname and `*` can match")
    );
    let pool = service().asking(|policy| policy.openyurt = Some("kubernetes.io/zone".into()));
    assert_eq!(said(pool), "there is no Node gone, so its 1 endpoint is in no node pool");
}

#[test]
fn with_the_policy_local_a_strict_service_is_not_exposed() {
    let pool = || service().asking(|policy| policy.openyurt = Some("openyurt.io/nodepool".into()));
    assert!(exposed(pool()).is_some());
    assert_eq!(exposed(Service { external_local: true, ..pool() }), None);
}

#[test]
fn nodes_that_look_alike_to_a_service_are_alike() {
    let config = Config { cases: 4_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&random::tapes(280), |tape| {
        let state = random::cluster_of_ours(&tape).state("");
        let findings = lint::findings(&state, Scope::All);
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
        assert_eq!(found(nodes.clone(), service, endpoints.clone()), []);
    }
    assert_eq!(lint::table(&[], false), "Nothing found.\n");
}

#[test]
fn a_service_without_a_usable_endpoint_is_not_the_topologys_fault() {
    let endpoints = vec![endpoint("10.0.0.1", "n1").unready()];
    assert_eq!(found(vec![node("n1", &[(Z, "a")])], keyed(Z), endpoints), []);
}

#[test]
fn nothing_is_found_in_a_service_that_asks_to_be_left_alone() {
    for keys in ["a-label-that-no-node-has", "broken,,"] {
        let service = keyed(keys).asking(|policy| {
            policy.handle = Some("false".into());
            policy.hints_asked = true;
        });
        let nodes = vec![node("n1", &[(Z, "a")])];
        let state = Cluster::of(nodes.clone(), service.clone(), vec![]).state("n1");
        assert_eq!(topology::ignored(&state, &service.id), None, "{keys}");
        assert_eq!(found(nodes, service, vec![endpoint("10.0.0.1", "nowhere")]), [], "{keys}");
    }
}

#[test]
fn the_endpoint_that_switches_hints_off_is_named() {
    let nodes = vec![node("n1", &[(Z, "a")]), node("n2", &[(Z, "a")])];
    let first = || endpoint("10.0.0.1", "n1");
    // An endpoint without any hint is named before one that has node hints.
    for first in [first().for_zones(&["a"]), first().for_nodes(&["n1"])] {
        let findings = found(nodes.clone(), service(), vec![first, endpoint("10.0.0.2", "n2")]);
        assert_eq!(rules(&findings), [Rule::HintsOff]);
        assert!(findings[0].message.contains("10.0.0.2:9376"), "{}", findings[0].message);
    }
    let first = first().for_zones(&["a"]);
    let findings = found(nodes, service(), vec![first, endpoint("10.0.0.2", "n2")]);
    assert_eq!(findings[0].nodes, ["n1", "n2"]);
}

#[test]
fn what_could_not_be_read_is_found_under_its_own_name() {
    let manifests = b"apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                      spec: {ports: [{port: 0}]}\n---\napiVersion: v1\nkind: Node\n\
                      metadata: {name: n1, labels: [a]}\n";
    let listing = topo_lb_kube::source::file::parse("a.yaml".as_ref(), manifests).unwrap();
    let mut findings =
        lint::unreadable(listing.faults.iter().map(topo_lb_kube::source::Fault::parts));
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
    let endpoints = vec![endpoint("10.0.0.1", "n1")];
    let mut cluster = Cluster::of(vec![node("n1", &[])], service(), endpoints);
    cluster.services.push(Service { id: id("later"), ..service() });
    let findings = lint::findings(&cluster.state(""), Scope::All);
    assert_eq!(rules(&findings), [Rule::SharedFrontend]);
    assert_eq!(findings[0].name, "svc");
    assert!(findings[0].message.contains("10.96.0.1 TCP 80 is default/later's"));
}

#[test]
fn keys_that_no_node_carries_are_found_once_per_service() {
    let nodes = vec![node("n1", &[(H, "n1"), ("rack", "")])];
    let findings = found(nodes, keyed("rack,room,floor,*"), vec![endpoint("10.0.0.1", "n1")]);
    assert_eq!(rules(&findings), [Rule::UnknownKey, Rule::UnknownKey]);
}

/// Twenty-five pools with strict keys, of which three have endpoints; with this refusal annotation.
fn closed_loop(keys: &str, refusal: Option<&str>) -> Vec<Finding> {
    let names: Vec<_> = (0..25).map(|pool| (format!("n{pool}"), format!("p{pool}"))).collect();
    let nodes = names.iter().map(|(name, pool)| node(name, &[("pool", pool)])).collect();
    let endpoints = ["n1", "n9", "n17"].iter().zip(1_u8..);
    let endpoints = endpoints.map(|(name, host)| endpoint(&format!("10.0.0.{host}"), name));
    let service = keyed(keys).asking(|policy| policy.refusal = refusal.map(Into::into));
    found(nodes, service, endpoints.collect())
}

#[test]
fn a_closed_loop_is_neither_an_error_nor_a_warning_and_none_if_it_is_meant() {
    let findings = closed_loop("pool", None);
    assert_eq!(rules(&findings), [Rule::Refused]);
    assert_eq!((findings[0].severity, findings[0].nodes.len()), (Severity::Info, 22));
    assert_eq!(closed_loop("pool", Some("intended")), []);
    let findings = closed_loop("pool", Some("yes"));
    assert_eq!(rules(&findings), [Rule::Ignored, Rule::Refused]);
    assert!(findings[0].message.contains("`yes` is not `intended`"), "{}", findings[0].message);
}

#[test]
fn a_service_that_refuses_every_node_is_an_error_even_if_refusals_are_meant() {
    let nodes = vec![node("n1", &[("pool", "a")]), node("n2", &[("pool", "b")])];
    let elsewhere = found(nodes, keyed("pool"), vec![endpoint("10.0.0.1", "elsewhere")]);
    for (findings, rule) in [
        (elsewhere, Rule::UnknownNode),
        (closed_loop("misspelt", Some("intended")), Rule::UnknownKey),
    ] {
        let mut kinds: Vec<_> = findings.iter().map(|one| (one.severity, one.rule)).collect();
        kinds.sort();
        assert_eq!(kinds, [(Severity::Error, Rule::Refused), (Severity::Warning, rule)]);
        let refused = findings.iter().find(|one| one.rule == Rule::Refused).unwrap();
        assert!(refused.message.contains("no node at all is served"), "{}", refused.message);
    }
}

#[test]
fn a_pool_whose_endpoints_cannot_be_used_is_a_warning() {
    let pools = [("n1", "a"), ("n2", "b"), ("n3", "c")];
    let nodes = pools.map(|(name, pool)| node(name, &[("pool", pool)])).into();
    let endpoints = vec![endpoint("10.0.0.1", "n1"), endpoint("10.0.0.2", "n2").unready()];
    let findings = found(nodes, keyed("pool"), endpoints);
    let refused: Vec<_> = findings.iter().map(|one| (one.severity, one.nodes.concat())).collect();
    assert_eq!(refused, [(Severity::Warning, "n2".into()), (Severity::Info, "n3".into())]);
}

/// The findings for these manifests.
fn meshes(manifests: &str, excluded: &[&str]) -> Vec<Finding> {
    let listing =
        topo_lb_kube::source::file::parse("a.yaml".as_ref(), manifests.as_bytes()).unwrap();
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

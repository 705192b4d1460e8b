//! deploy/admission: which objects its rules deny, and to whom.

use std::path::Path;

use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use serde::{Serialize, de::DeserializeOwned};

use super::*;

const ZONE: &str = "topology.kubernetes.io/zone";

/// Reads an object of the API: a field that the API does not have would get lost.
fn read<T: Serialize + DeserializeOwned>(written: &Value) {
    let object: T = serde_json::from_value(written.clone()).unwrap();
    assert_eq!(&serde_json::to_value(object).unwrap(), written, "unknown fields");
}

/// The policy in a file, which binds itself.
fn policy(name: &str) -> Value {
    let file = format!("../../deploy/admission/{name}.yaml");
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let [policy, binding]: [Value; 2] =
        serde_saphyr::from_multiple::<Value>(&text).unwrap().try_into().unwrap();
    read::<ValidatingAdmissionPolicy>(&policy);
    read::<ValidatingAdmissionPolicyBinding>(&binding);
    assert_eq!(policy["metadata"]["name"], format!("topo-lb-{name}"));
    assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"]);
    assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]));
    policy
}

fn evaluate(expression: &Value, context: &cel::Context<'_, '_>) -> cel::Value {
    let program = cel::Program::compile(expression.as_str().unwrap()).unwrap();
    program.execute(context).unwrap_or_else(|error| panic!("{expression}: {error}"))
}

/// Whether a policy admits a change from one object to another by a member of a group.
fn admits(policy: &Value, group: &str, old: &Value, new: &Value) -> bool {
    let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array().unwrap();
    let resource =
        format!("{}s", new["kind"].as_str().unwrap().to_lowercase()).replace("ys", "ies");
    let is_matched =
        |rule: &Value| rule["resources"].as_array().unwrap().contains(&json!(resource));
    assert!(rules.iter().any(is_matched), "{resource} are not looked at");

    let mut context = cel::Context::default();
    let request = json!({"kind": {"kind": new["kind"]}, "userInfo": {"groups": [group]}});
    for (name, value) in [("object", new), ("oldObject", old), ("request", &request)] {
        context.add_variable(name, value).unwrap();
    }
    // Of Kubernetes' own library of addresses.
    context.add_function("cidr", |range: Arc<String>| range).unwrap();
    let contains = |This(range): This<Arc<String>>, address: Arc<String>| {
        let range: ipnet::IpNet = range.parse().unwrap();
        range.contains(&address.parse::<std::net::IpAddr>().unwrap())
    };
    context.add_function("containsIP", contains).unwrap();

    let mut variables = std::collections::HashMap::new();
    for variable in policy["spec"]["variables"].as_array().unwrap() {
        let name = variable["name"].as_str().unwrap().to_owned();
        variables.insert(name, evaluate(&variable["expression"], &context));
    }
    context.add_variable_from_value("variables", variables);
    policy["spec"]["validations"]
        .as_array()
        .unwrap()
        .iter()
        .all(|validation| evaluate(&validation["expression"], &context) == cel::Value::Bool(true))
}

/// A change is denied to tenants. Operators may make it, anybody may undo it, and what it has made may be
/// changed elsewhere.
fn denies(policy: &Value, old: &Value, new: &Value) {
    for before in [old, &Value::Null] {
        assert!(!admits(policy, "tenants", before, new), "{before} → {new}");
        assert!(admits(policy, "topo-lb-operators", before, new), "{before} → {new}");
    }
    let mut labelled = new.clone();
    labelled["metadata"]["labels"] = json!({"app": "web"});
    assert!(admits(policy, "tenants", new, &labelled), "{new}");
    assert!(admits(policy, "tenants", new, old), "{new} → {old}");
}

/// A change is free for tenants.
fn allows(policy: &Value, old: &Value, new: &Value) {
    for before in [old, &Value::Null] {
        assert!(admits(policy, "tenants", before, new), "{before} → {new}");
    }
}

fn plain(kind: &str) -> Value {
    json!({"kind": kind, "metadata": {"name": "web"}, "spec": {}})
}

fn annotated(kind: &str, name: &str, value: &str) -> Value {
    json!({"kind": kind, "metadata": {"name": "web", "annotations": {name: value}}, "spec": {}})
}

fn with(kind: &str, spec: &Value) -> Value {
    json!({"kind": kind, "metadata": {"name": "web"}, "spec": spec})
}

#[test]
fn only_operators_make_policies_strict() {
    let policy = policy("strict");
    for kind in ["Service", "Namespace"] {
        for (name, value) in [
            ("topo-lb.io/topology-keys", ZONE),
            ("topo-lb.io/topology-keys", "kubernetes.io/hostname, rack"),
            ("topo-lb.io/external-topology-keys", ZONE),
            ("openyurt.io/topologyKeys", "openyurt.io/nodepool"),
        ] {
            denies(&policy, &plain(kind), &annotated(kind, name, value));
        }
        for value in ["*", &format!("{ZONE},*"), &format!("{ZONE} , * ")] {
            let soft = annotated(kind, "topo-lb.io/topology-keys", value);
            allows(&policy, &plain(kind), &soft);
        }
        let other = annotated(kind, "topo-lb.io/topology-keys", "rack");
        denies(&policy, &annotated(kind, "topo-lb.io/topology-keys", "*"), &other);
    }
    for kind in ["TopologyPolicy", "ClusterTopologyPolicy"] {
        let soft = with(kind, &json!({"topologyKeys": [ZONE, "*"]}));
        allows(&policy, &plain(kind), &soft);
        denies(&policy, &soft, &with(kind, &json!({"topologyKeys": [ZONE]})));
        denies(&policy, &soft, &with(kind, &json!({"externalTopologyKeys": [ZONE]})));
        let wider = json!({"topologyKeys": [ZONE], "serviceSelector": {"matchLabels": {"a": "b"}}});
        let strict = with(kind, &json!({"topologyKeys": [ZONE]}));
        assert!(!admits(&policy, "tenants", &strict, &with(kind, &wider)));
    }
}

#[test]
fn only_operators_send_shares_away() {
    let policy = policy("shares");
    for kind in ["Service", "Namespace"] {
        denies(&policy, &plain(kind), &annotated(kind, "topo-lb.io/spill", "5%"));
        denies(&policy, &plain(kind), &annotated(kind, "topo-lb.io/weights", "rack: a=1, b=2"));
        allows(&policy, &plain(kind), &annotated(kind, "topo-lb.io/topology-keys", ZONE));
    }
    for kind in ["TopologyPolicy", "ClusterTopologyPolicy"] {
        denies(&policy, &plain(kind), &with(kind, &json!({"spill": "5%"})));
        denies(&policy, &plain(kind), &with(kind, &json!({"weights": "rack: a=1"})));
        allows(&policy, &plain(kind), &with(kind, &json!({"topologyKeys": ["*"]})));
    }
}

#[test]
fn only_operators_eject_more_than_half() {
    let policy = policy("ejection");
    let shares = |most: &str| [format!("3, 30s, {most}"), format!("3,30s,{most} ")];
    for most in ["51%", "99%", "100%", "051%", "51 %", "51\u{a0}%"] {
        for text in shares(most) {
            assert!(is_used(&json!({"ejection": text})), "{text}");
            for kind in ["Service", "Namespace"] {
                denies(&policy, &plain(kind), &annotated(kind, "topo-lb.io/ejection", &text));
            }
            for kind in ["TopologyPolicy", "ClusterTopologyPolicy"] {
                denies(&policy, &plain(kind), &with(kind, &json!({"ejection": text})));
            }
        }
    }
    let small = ["1%", "50%", "050%", "9 %"].into_iter().flat_map(shares);
    for text in small.chain(["3".to_owned(), "3, 30s".to_owned()]) {
        let kind = "Service";
        allows(&policy, &plain(kind), &annotated(kind, "topo-lb.io/ejection", &text));
        let kind = "TopologyPolicy";
        allows(&policy, &plain(kind), &with(kind, &json!({"ejection": text})));
    }
}

#[test]
fn nobody_leaves_where_it_is_not_allowed() {
    let policy = policy("exceptions");
    for kind in ["Service", "Namespace"] {
        denies(&policy, &plain(kind), &annotated(kind, "topo-lb.io/handle", "false"));
        allows(&policy, &plain(kind), &annotated(kind, "topo-lb.io/handle", "true"));
    }
    for kind in ["TopologyPolicy", "ClusterTopologyPolicy"] {
        denies(&policy, &plain(kind), &with(kind, &json!({"handle": false})));
        allows(&policy, &plain(kind), &with(kind, &json!({"topologyKeys": [ZONE]})));
        let [none, all] = ["none", "all"].map(|app| {
            let selector = json!({"matchLabels": {"app": app}});
            with(kind, &json!({"handle": false, "serviceSelector": selector}))
        });
        assert!(!admits(&policy, "tenants", &none, &all));
    }
    let excluded = annotated("Pod", "topo-lb.io/exclude", "true");
    for group in ["tenants", "topo-lb-operators"] {
        assert!(!admits(&policy, group, &Value::Null, &excluded));
        assert!(!admits(&policy, group, &plain("Pod"), &excluded));
    }
    assert!(admits(&policy, "tenants", &excluded, &excluded));
    allows(&policy, &plain("Pod"), &annotated("Pod", "topo-lb.io/exclude", "false"));
}

#[test]
fn external_ips_are_within_their_range() {
    let policy = policy("external-ips");
    let service = |addresses: &[&str]| with("Service", &json!({"externalIPs": addresses}));
    allows(&policy, &plain("Service"), &service(&["203.0.113.1", "203.0.113.127"]));
    denies(&policy, &plain("Service"), &service(&["203.0.113.128"]));
    denies(&policy, &service(&["203.0.113.1"]), &service(&["203.0.113.1", "2001:db8::1"]));
    allows(&policy, &plain("Service"), &plain("Service"));
}

//! The schema refuses what the agent would ignore, and accepts everything else.

mod admission;

use std::sync::Arc;

use cel::extractors::This;
use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use super::*;
use topo_lb_core::cluster::PolicyId;
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::topology::{Origin, broken};

/// The schema of `spec`, as the API server gets it.
fn schema() -> Value {
    let definition = serde_json::to_value(TopologyPolicy::crd()).unwrap();
    definition.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap().clone()
}

/// All definitions.
fn definitions() -> Value {
    json!([TopologyPolicy::crd(), ClusterTopologyPolicy::crd()])
}

/// Whether a text keeps `pattern` and the lengths of a schema; whether a list does.
fn fits(value: &Value, schema: &Value) -> bool {
    let within = |count: usize, least: &str, most: &str| {
        let limit = |name: &str| schema[name].as_u64().map(|limit| usize::try_from(limit).unwrap());
        limit(least).is_none_or(|limit| count >= limit)
            && limit(most).is_none_or(|limit| count <= limit)
    };
    match value {
        Value::String(text) => {
            let pattern = schema["pattern"].as_str();
            within(text.len(), "minLength", "maxLength")
                && pattern.is_none_or(|pattern| regex::Regex::new(pattern).unwrap().is_match(text))
        }
        Value::Array(items) => {
            let is_set = schema["x-kubernetes-list-type"] == "set";
            let is_new = |at: usize| !items[..at].contains(&items[at]);
            within(items.len(), "minItems", "maxItems")
                && items.iter().all(|item| fits(item, &schema["items"]))
                && (!is_set || (0..items.len()).all(is_new))
        }
        _ => true,
    }
}

/// Whether the API server would accept this `spec`: by patterns, limits and CEL rules.
fn is_accepted(spec: &Value) -> bool {
    let schema = schema();
    let all = spec.as_object().unwrap();
    let by_fields = all.iter().all(|(name, value)| {
        let field = schema["properties"].get(name).unwrap_or_else(|| panic!("no field {name}"));
        fits(value, field)
    });
    let rules = schema["x-kubernetes-validations"].as_array().unwrap();
    assert_eq!(rules.len(), 10);
    by_fields
        && rules.iter().all(|rule| {
            let program = cel::Program::compile(rule["rule"].as_str().unwrap()).unwrap();
            let mut context = cel::Context::default();
            context.add_variable("self", spec).unwrap();
            // Of Kubernetes' own library of strings.
            context
                .add_function("split", |This(text): This<Arc<String>>, by: Arc<String>| {
                    let parts = text.split(by.as_str()).map(|part| part.to_owned().into());
                    cel::Value::List(Arc::new(parts.collect()))
                })
                .unwrap();
            match program.execute(&context) {
                Ok(cel::Value::Bool(keeps)) => keeps,
                other => panic!("{rule} of {spec}: {other:?}"),
            }
        })
}

/// Whether the agent would use all of it.
fn is_used(spec: &Value) -> bool {
    let spec: TopologyPolicySpec = serde_json::from_value(spec.clone()).unwrap();
    let sources = PolicySources::from(spec.rules);
    sources != PolicySources::default()
        && broken(&Origin::Policy(PolicyId::default()), &sources).is_empty()
}

#[test]
fn the_schema_refuses_what_the_agent_would_ignore() {
    let zone = "topology.kubernetes.io/zone";
    let many = |count: usize| (0..count).map(|at| format!("k{at}")).collect::<Vec<_>>();
    let each = |count: usize, form: &str| {
        let parts = (0..count).map(|at| format!("k{at}{form}")).collect::<Vec<_>>();
        parts.join(", ")
    };
    let prefix = |length: usize| format!("{}/x", "a".repeat(length));
    let mut verdicts = [0, 0];
    for spec in [
        json!({}),
        json!({"precedence": 3}),
        json!({"topologyKeys": [zone]}),
        json!({"topologyKeys": [zone, "*"]}),
        json!({"topologyKeys": ["*"]}),
        json!({"topologyKeys": []}),
        json!({"topologyKeys": [""]}),
        json!({"topologyKeys": ["*", zone]}),
        json!({"topologyKeys": ["*", "*"]}),
        json!({"topologyKeys": [zone, zone]}),
        json!({"topologyKeys": ["a,b"]}),
        json!({"topologyKeys": ["a b"]}),
        json!({"topologyKeys": ["A/a"]}),
        json!({"topologyKeys": ["a/b/c"]}),
        json!({"topologyKeys": ["-a"]}),
        json!({"topologyKeys": ["a.b_c-d"]}),
        json!({"topologyKeys": ["x".repeat(63)]}),
        json!({"topologyKeys": ["x".repeat(64)]}),
        json!({"topologyKeys": many(16)}),
        json!({"topologyKeys": many(17)}),
        json!({"topologyKeys": [prefix(253)]}),
        json!({"topologyKeys": [zone, prefix(254)]}),
        json!({"topologyKeys": [prefix(315)]}),
        json!({"topologyKeys": [format!("{}/x", ["a"; 127].join("."))]}),
        json!({"topologyKeys": [format!("{}/x", ["a"; 128].join("."))]}),
        json!({"externalTopologyKeys": [prefix(254)]}),
        json!({"externalTopologyKeys": [zone]}),
        json!({"externalTopologyKeys": ["*", zone]}),
        json!({"topologyKeys": [zone, "*"], "minEndpoints": "2"}),
        json!({"topologyKeys": [zone, "rack", "*"], "minEndpoints": "2,3"}),
        json!({"topologyKeys": [zone, "rack", "*"], "minEndpoints": "2,3,1"}),
        json!({"topologyKeys": [zone, "rack", "*"], "minEndpoints": "2,3,1,1"}),
        json!({"topologyKeys": [zone, "rack"], "minEndpoints": "2,3"}),
        json!({"evacuate": format!("{zone}=b")}),
        json!({"evacuate": format!("{zone}=b, rack=r1; until=2026-12-01T06:00:00Z; ramp=5m; allow-strict=*; force=true")}),
        json!({"evacuate": format!("{zone} = b ;until= 2026-12-01T06:00:00.5+02:00 ; allow-strict = rack;")}),
        json!({"evacuate": each(16, "=v")}),
        json!({"evacuate": each(17, "=v")}),
        json!({"evacuate": ""}),
        json!({"evacuate": zone}),
        json!({"evacuate": format!("{zone}=")}),
        json!({"evacuate": format!("{zone}=*")}),
        json!({"evacuate": format!("{zone}=b; for=2h")}),
        json!({"evacuate": format!("{zone}=b; ramp=5")}),
        json!({"evacuate": format!("{zone}=b; force=yes")}),
        json!({"evacuate": format!("{zone}=b; until=tomorrow")}),
        json!({"topologyKeys": [zone], "minEndpoints": "0"}),
        json!({"topologyKeys": [zone], "minEndpoints": "1%"}),
        json!({"topologyKeys": [zone, "rack", "*"], "minEndpoints": "100%,3"}),
        json!({"topologyKeys": [zone], "minEndpoints": "0%"}),
        json!({"topologyKeys": [zone], "minEndpoints": "101%"}),
        json!({"topologyKeys": [zone], "minEndpoints": ""}),
        json!({"topologyKeys": [zone], "minEndpoints": "two"}),
        json!({"topologyKeys": [zone], "minEndpoints": "65535"}),
        json!({"topologyKeys": [zone], "minEndpoints": "65536"}),
        json!({"topologyKeys": [zone], "minEndpoints": "70000"}),
        json!({"topologyKeys": [zone, "rack"], "minEndpoints": "2, 99999"}),
        json!({"topologyKeys": [zone, "rack", "*"], "minEndpoints": "2, 3, 1"}),
        json!({"topologyKeys": [zone, "rack", "*"], "minEndpoints": "2,3,5"}),
        json!({"topologyKeys": [zone, "rack", "*"], "minEndpoints": "2,3,11"}),
        json!({"topologyKeys": [zone, "rack", "*"], "minEndpoints": "2,3,1%"}),
        json!({"topologyKeys": [zone, "rack", "node"], "minEndpoints": "2,3,5"}),
        json!({"topologyKeys": ["*"], "minEndpoints": "5"}),
        json!({"minEndpoints": "two"}),
        json!({"minEndpoints": "2,30%"}),
        json!({"minEndpoints": vec!["1"; 16].join(",")}),
        json!({"minEndpoints": vec!["1"; 17].join(",")}),
        json!({"topologyKeys": [zone], "spill": "5%"}),
        json!({"topologyKeys": [zone], "spill": "0.55%"}),
        json!({"topologyKeys": [zone], "spill": "auto"}),
        json!({"topologyKeys": [zone], "spill": "auto%"}),
        json!({"topologyKeys": [zone], "spill": "100%"}),
        json!({"topologyKeys": [zone], "spill": "100.01%"}),
        json!({"topologyKeys": [zone], "spill": "5"}),
        json!({"topologyKeys": [zone], "spill": "5.555%"}),
        json!({"spill": "5%"}),
        json!({"refusal": "intended"}),
        json!({"refusal": "meant"}),
        json!({"direct": "refuse"}),
        json!({"direct": "allow"}),
        json!({"direct": "steer"}),
        json!({"direct": "deny"}),
        json!({"handle": false}),
        json!({"handle": false, "mode": "observe"}),
        json!({"handle": false, "mode": "enforce", "ramp": "0.5%"}),
        json!({"handle": false, "mode": "off"}),
        json!({"handle": false, "ramp": "101%"}),
        json!({"weights": "topology.kubernetes.io/zone: a=80, b=20"}),
        json!({"weights": "topology.kubernetes.io/zone:a=0,b.c_d-E=1000 , *=1"}),
        json!({"weights": ""}),
        json!({"weights": "garbage"}),
        json!({"weights": "80, 20"}),
        json!({"weights": "a=80, b=20"}),
        json!({"weights": "rack: a=80, b"}),
        json!({"weights": "rack: a=80,"}),
        json!({"weights": "rack: a=1001"}),
        json!({"weights": "rack: a=-1"}),
        json!({"weights": "rack: a=5%"}),
        json!({"weights": "rack: a b=1"}),
        json!({"weights": "rack: =1"}),
        json!({"weights": "*: a=1"}),
        json!({"weights": "-x: a=1"}),
        json!({"weights": format!("rack: {}=1", "x".repeat(63))}),
        json!({"weights": format!("rack: {}=1", "x".repeat(64))}),
        json!({"weights": format!("{}: a=1", prefix(253))}),
        json!({"weights": format!("{}: a=1", prefix(254))}),
        json!({"weights": "rack: a=0"}),
        json!({"weights": "rack: zone-1=0, *=0"}),
        json!({"weights": "rack: zone-1=0, *=10"}),
        json!({"weights": format!("rack: {}", each(16, "=1"))}),
        json!({"weights": format!("rack: {}", each(17, "=1"))}),
        json!({"weights": "rack: 80, *: 20"}),
        json!({"weights": "rack: 80, *: 0"}),
        json!({"weights": "rack: 1001"}),
        json!({"weights": "a b: 5"}),
        json!({"weights": "rack: 80, zone: a=20"}),
        json!({"weights": each(16, ": 1")}),
        json!({"weights": each(17, ": 1")}),
        json!({"weights": format!("rack: 5, {}: 1", prefix(254))}),
        json!({"topologyKeys": ["rack", zone, "*"],
               "weights": "*: 1, topology.kubernetes.io/zone: 2, rack: 1000"}),
        json!({"topologyKeys": ["rack", zone, "*"], "weights": "*: 1, rack: 1000"}),
        json!({"topologyKeys": ["rack", "*"], "weights": "*: 1, rack: 2, room: 3"}),
        json!({"topologyKeys": ["rack", "*"], "weights": "*: 1, room: 3"}),
        json!({"topologyKeys": ["rack", "*"], "weights": "room: a=1"}),
        json!({"topologyKeys": many(16), "weights": each(16, ": 1")}),
        json!({"topologyKeys": ["rack", "*"], "weights": "rack: 2, *: 1", "spill": "5%"}),
        json!({"topologyKeys": ["rack", "*"], "weights": "rack: 2, *: 1", "spill": "auto"}),
        json!({"topologyKeys": ["rack", "*"], "weights": "rack: 2, *: 1", "spill": "0%"}),
        json!({"topologyKeys": ["rack", "*"], "weights": "rack: a=1", "spill": "0.01%"}),
        json!({"weights": "rack: a=1", "spill": "5%"}),
        json!({"weights": "rack: 2, *: 1", "spill": "auto"}),
        json!({"weights": "rack: a=1", "spill": "0.00%"}),
        json!({"return": "off"}),
        json!({"return": "5s"}),
        json!({"return": "86400s"}),
        json!({"return": "1440m"}),
        json!({"return": "24h"}),
        json!({"slowStart": "10s"}),
        json!({"slowStart": "3600s"}),
        json!({"slowStart": "60m"}),
        json!({"slowStart": "1h"}),
        json!({"slowStart": "off"}),
        json!({"return": "4s"}),
        json!({"return": "86401s"}),
        json!({"return": "1441m"}),
        json!({"return": "25h"}),
        json!({"return": "10"}),
        json!({"slowStart": "9s"}),
        json!({"slowStart": "3601s"}),
        json!({"slowStart": "61m"}),
        json!({"slowStart": "2h"}),
        json!({"topologyKeys": ["rack", "*"], "spill": "5%", "slowStart": "60s"}),
        json!({"ejection": "3"}),
        json!({"ejection": "15,600s,100%"}),
        json!({"ejection": "1, 10m, 1%"}),
        json!({"ejection": "0"}),
        json!({"ejection": "16"}),
        json!({"ejection": "3, 601s"}),
        json!({"ejection": "3, 11m"}),
        json!({"ejection": "3, 30"}),
        json!({"ejection": "3, 30s, 0%"}),
        json!({"ejection": "3, 30s, 101%"}),
    ] {
        let used = is_used(&spec);
        assert_eq!(is_accepted(&spec), used, "{spec}");
        verdicts[usize::from(used)] += 1;
    }
    assert!(verdicts.iter().all(|count| *count > 10), "{verdicts:?}");
}

/// docs/topology.md lists these.
#[test]
fn what_the_schema_says_differently_is_known() {
    for accepted in [
        // No rule can compare two parts of a text: it would cost too much by the API server's estimate.
        json!({"weights": "rack: a=1, a=2"}),
        json!({"weights": "rack: 1, rack: 2"}),
        json!({"topologyKeys": ["rack", "*"], "weights": "track: 1, *: 2"}),
    ] {
        assert!(is_accepted(&accepted) && !is_used(&accepted), "{accepted}");
    }
    for refused in [
        json!({"topologyKeys": ["rack"], "minEndpoints": " 02 "}),
        json!({"topologyKeys": ["rack"], "spill": "5 %"}),
        json!({"weights": " rack:\ta=080"}),
        json!({"handle": false, "weights": "garbage"}),
    ] {
        assert!(!is_accepted(&refused) && is_used(&refused), "{refused}");
    }
}

/// The API server warns of any other.
#[test]
fn every_format_is_one_that_kubernetes_knows() {
    let (mut left, mut formats) = (vec![definitions()], Vec::new());
    while let Some(value) = left.pop() {
        formats.extend(value["format"].as_str().map(str::to_owned));
        match value {
            Value::Array(all) => left.extend(all),
            Value::Object(all) => left.extend(all.into_iter().map(|(_, value)| value)),
            _ => {}
        }
    }
    let known = ["int32", "int64", "float", "double", "byte", "date", "date-time", "duration"];
    let unknown: Vec<_> = formats.iter().filter(|it| !known.contains(&it.as_str())).collect();
    assert!(!formats.is_empty() && unknown.is_empty(), "{unknown:?}");
}

#[test]
fn the_definitions_in_deploy_are_these() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    for file in ["crds/topo-lb.io.yaml", "helm/topo-lb/files/crds.yaml"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let differs = format!("write it again: topo-lb crds > deploy/{file}");
        assert!(text == manifest().unwrap(), "{differs}");
    }
}

//! What becomes of one object.

use serde_json::{Value, json};

use topo_lb_core::cluster::Annotation;
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::topology::{Origin, broken};

/// The annotation that `migrate` writes.
pub(super) const KEYS: &str = Annotation::TopologyKeys.name();
/// The annotation that it takes away.
pub(super) const OPENYURT: &str = Annotation::OpenYurt.name();

/// What becomes of an object.
pub(super) enum Outcome {
    /// It has nothing to migrate.
    Untouched,
    /// It should change, and cannot: why, as a sentence.
    Left(String),
    /// It changes.
    Changed {
        /// The new object.
        service: Value,
        /// The value of [`KEYS`].
        keys: String,
        /// What has changed, as a sentence.
        sentence: String,
    },
}

impl Outcome {
    pub(super) fn sentence(self) -> Option<String> {
        match self {
            Self::Untouched => None,
            Self::Left(sentence) | Self::Changed { sentence, .. } => Some(sentence),
        }
    }
}

/// The keys that close a preference of `spec.trafficDistribution`, where zones are pools. A node in no zone
/// uses its own endpoints, as OpenYurt's in no pool. `None`: another preference.
fn closed(preference: &str) -> Option<&'static str> {
    match preference {
        "PreferClose" | "PreferSameZone" => {
            Some("topology.kubernetes.io/zone, kubernetes.io/hostname")
        }
        // Kubernetes falls back from the node to its zone.
        "PreferSameNode" => Some("kubernetes.io/hostname, topology.kubernetes.io/zone"),
        _ => None,
    }
}

/// The object with topo-lb's annotation in place of Kubernetes' field and OpenYurt's annotation, and the
/// same meaning. `zones_are_pools`: also the one with a preference for its zone, which the annotation closes.
pub(super) fn migrated(object: &Value, zones_are_pools: bool) -> Outcome {
    let annotation = |name: &str| object["metadata"]["annotations"][name].as_str();
    let written = object["spec"].get("topologyKeys");
    let (own, openyurt) = (annotation(KEYS), annotation(OPENYURT));
    let has_address = object["spec"]["clusterIP"] != "None";
    let preference = object["spec"]["trafficDistribution"].as_str().and_then(closed);
    let preference = preference.filter(|_| zones_are_pools && own.is_none() && has_address);
    let is_service = object["kind"] == "Service" && object["apiVersion"] == "v1";
    if !is_service || (openyurt.is_none() && written.is_none() && preference.is_none()) {
        return Outcome::Untouched;
    }
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
    let name = format!("{namespace}/{}", object["metadata"]["name"].as_str().unwrap_or("?"));
    let left =
        |why: &dyn std::fmt::Display| Outcome::Left(format!("{name} is left as it is: {why}"));

    let field: Option<Vec<&str>> = match written {
        None | Some(Value::Null) => Some(Vec::new()),
        Some(Value::Array(keys)) => keys.iter().map(Value::as_str).collect(),
        Some(_) => None,
    };
    let Some(field) = field else { return left(&"spec.topologyKeys is not a list of texts") };
    let said = PolicySources {
        topology_keys: own.map(Into::into),
        openyurt: openyurt.map(Into::into),
        spec_topology_keys: field.iter().map(|&key| key.into()).collect(),
        ..PolicySources::default()
    };
    if let Some(ignored) = broken(&Origin::Service, &said).first() {
        return left(ignored);
    }
    // In the order in which they would decide.
    let keys = match (own, openyurt) {
        (Some(own), _) => own.to_owned(),
        (None, Some("kubernetes.io/hostname")) => "kubernetes.io/hostname".to_owned(),
        // A node in no pool uses its own endpoints.
        (None, Some(_)) => "apps.openyurt.io/nodepool, kubernetes.io/hostname".to_owned(),
        (None, None) if !field.is_empty() => field.join(", "),
        (None, None) => preference.unwrap_or_default().to_owned(),
    };
    if !keys.is_empty() && object["spec"]["externalTrafficPolicy"] == "Local" {
        return left(&"topology keys exclude externalTrafficPolicy: Local");
    }

    let mut service = object.clone();
    if let Some(spec) = service.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("topologyKeys");
    }
    if !keys.is_empty() {
        let metadata = service.get_mut("metadata").and_then(Value::as_object_mut);
        let annotations = metadata.map(|all| all.entry("annotations").or_insert(Value::Null));
        let annotations = annotations.and_then(|all| {
            if all.is_null() {
                *all = json!({});
            }
            all.as_object_mut()
        });
        let Some(annotations) = annotations else {
            return left(&"its metadata or its annotations are not a map");
        };
        annotations.remove(OPENYURT);
        annotations.insert(KEYS.to_owned(), json!(keys));
    }
    let taken = match (openyurt, field.is_empty()) {
        (Some(_), true) => format!("annotation {OPENYURT}"),
        (Some(_), false) => format!("annotation {OPENYURT} and spec.topologyKeys"),
        (None, _) => "spec.topologyKeys".to_owned(),
    };
    let is_closed = openyurt.is_none() && field.is_empty() && preference.is_some();
    let sentence = match (own, keys.is_empty()) {
        (None, false) if is_closed => format!(
            "{name}: {KEYS}: {keys} closes the pool that spec.trafficDistribution prefers; the field stays"
        ),
        (Some(_), _) => format!("{name}: {taken} is taken away; {KEYS} was there"),
        (None, true) => format!("{name}: the empty spec.topologyKeys is taken away"),
        (None, false) => format!("{name}: {taken} becomes {KEYS}: {keys}"),
    };
    Outcome::Changed { service, keys, sentence }
}

//! Namespaces and Pods of service meshes, for `lint` only.

use std::collections::BTreeMap;

/// Labels or annotations.
pub type Pairs = BTreeMap<String, String>;

/// A namespace or a Pod in a service mesh, which takes over its connections.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Meshed {
    /// Its namespace.
    pub namespace: String,
    /// Its name; `None` if the whole namespace is in the mesh.
    pub pod: Option<String>,
    /// The mesh.
    pub mesh: &'static str,
    /// The label or annotation that shows it.
    pub by: String,
}

/// A label or annotation of objects in a mesh, and its values.
#[derive(Clone, Copy)]
enum Mark {
    Label(&'static str, &'static [&'static str]),
    Annotation(&'static str, &'static [&'static str]),
}

use Mark::{Annotation, Label};

/// Any non-empty value.
const ANY: &[&str] = &[];
const ON: &[&str] = &["enabled", "true"];

const NAMESPACES: &[(&str, Mark)] = &[
    ("Istio", Label("istio-injection", &["enabled"])),
    ("Istio", Label("istio.io/rev", ANY)),
    ("Istio ambient", Label("istio.io/dataplane-mode", &["ambient"])),
    ("Linkerd", Annotation("linkerd.io/inject", &["enabled", "ingress"])),
    ("Kuma", Label("kuma.io/sidecar-injection", ON)),
];

const PODS: &[(&str, Mark)] = &[
    ("Istio", Label("security.istio.io/tlsMode", ANY)),
    ("Istio", Label("sidecar.istio.io/inject", &["true"])),
    ("Istio", Annotation("sidecar.istio.io/status", ANY)),
    ("Istio ambient", Label("istio.io/dataplane-mode", &["ambient"])),
    ("Linkerd", Label("linkerd.io/control-plane-ns", ANY)),
    ("Linkerd", Annotation("linkerd.io/inject", &["enabled", "ingress"])),
    ("Kuma", Label("kuma.io/sidecar-injection", ON)),
    ("Consul", Annotation("consul.hashicorp.com/connect-inject", &["true"])),
];

/// Label selectors that find most Pods of meshes.
pub const POD_SELECTORS: [&str; 3] =
    ["security.istio.io/tlsMode", "istio.io/dataplane-mode=ambient", "linkerd.io/control-plane-ns"];

impl Meshed {
    /// The namespace, or that Pod in it, with these labels and annotations; `None` if it is not in a
    /// mesh.
    pub(super) fn of(
        namespace: &str,
        pod: Option<&str>,
        labels: &Pairs,
        annotations: &Pairs,
    ) -> Option<Self> {
        let marks = if pod.is_some() { PODS } else { NAMESPACES };
        let (mesh, by) = mark(marks, labels, annotations)?;
        Some(Self { namespace: namespace.to_owned(), pod: pod.map(str::to_owned), mesh, by })
    }
}

fn mark(
    marks: &[(&'static str, Mark)],
    labels: &Pairs,
    annotations: &Pairs,
) -> Option<(&'static str, String)> {
    marks.iter().find_map(|&(mesh, mark)| {
        let (what, pairs, key, values) = match mark {
            Label(key, values) => ("label", labels, key, values),
            Annotation(key, values) => ("annotation", annotations, key, values),
        };
        let value = pairs.get(key).filter(|value| !value.is_empty())?;
        let is_on = values.is_empty() || values.contains(&value.as_str());
        is_on.then(|| match values {
            // Values are long, so only the key.
            [] => (mesh, format!("{what} {key}")),
            _ => (mesh, format!("{what} {key}={value}")),
        })
    })
}

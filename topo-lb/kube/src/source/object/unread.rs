//! What nobody reads in the objects of a cluster, for `lint` only.

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::field::{Metadata, PROXY_NAME, or_default};
use super::kind::Kind;
use super::service;
use super::written::Written;
use topo_lb_core::cluster::On;
use topo_lb_core::cluster::unread::{Unread, What};

/// The label of a slice that says whose it is.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// The keys of labels or annotations.
#[derive(Default)]
struct Keys(Vec<String>);

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(field: D) -> Result<Self, D::Error> {
        struct All;
        impl<'de> Visitor<'de> for All {
            type Value = Keys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(Keys(keys))
            }
        }
        field.deserialize_map(All)
    }
}

#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    kind: Option<String>,
    metadata: Metadata<Keys, Keys>,
    #[serde(default, deserialize_with = "or_default")]
    spec: Spec,
}

#[derive(Default, Deserialize)]
struct Spec {
    #[serde(default)]
    template: Option<Template>,
}

/// The Pods of a Deployment and the like.
#[derive(Deserialize)]
struct Template {
    #[serde(default, deserialize_with = "or_default")]
    metadata: TemplateMetadata,
}

#[derive(Default, Deserialize)]
struct TemplateMetadata {
    #[serde(default, deserialize_with = "or_default")]
    annotations: Keys,
}

/// What has no effect in an object as it is written; nothing if it is unreadable. `list`: what kind its
/// list is of, which it may leave out.
pub(in crate::source) fn unread(list: Option<Kind>, object: impl Written) -> Vec<Unread> {
    let Ok(Object { kind, metadata, spec }) = object.read::<Object>() else {
        return Vec::new();
    };
    let kind = kind.or_else(|| Some(list?.to_string())).unwrap_or_default();
    let kind = &*kind;
    let has_namespace = !matches!(kind, "Namespace" | "Node" | "ClusterTopologyPolicy");
    let namespace = if has_namespace { metadata.namespace() } else { "" };
    let (Keys(labels), Keys(annotations)) = (&metadata.labels, &metadata.annotations);
    let mut all = Unread::in_metadata(kind, namespace, &metadata.name, labels, annotations);
    let mut add = |what| {
        let (kind, namespace) = (kind.to_owned(), namespace.to_owned());
        all.push(Unread { kind, namespace, name: metadata.name.clone(), what });
    };
    for key in spec.template.into_iter().flat_map(|it| it.metadata.annotations.0) {
        let what = What::Annotation(key, On::Pod);
        if what.doubt().is_some() {
            add(what);
        }
    }
    let names_one = |key: &String| matches!(&**key, SERVICE_NAME | PROXY_NAME);
    match kind {
        "Endpoints" => add(What::Endpoints),
        "Service" => service::unserved(object)
            .into_iter()
            .for_each(|(kind, text, why)| add(What::Address(kind, text, why))),
        "EndpointSlice" if !labels.iter().any(names_one) => add(What::Slice),
        _ => {}
    }
    all
}

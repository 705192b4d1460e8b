//! The three kinds as kube-rs asks for them and reads them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use ::kube::Resource;
use ::kube::core::DynamicResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use crate::cluster::{Node, Service, ServiceId, Slice, Update, slice::SliceId};
use crate::source::object::{Kind, LeftOut, Names, Object, ObjectError, parse_kind};

/// Namespace and name of an object.
pub(super) type Name = (Arc<str>, Arc<str>);

/// A version of an API group.
pub(super) type Version = &'static str;

/// A kind of object that is watched.
pub(super) trait Kept: Clone + fmt::Debug + Send + Unpin + 'static {
    const KIND: Kind;
    const GROUP: &'static str;
    /// Best first.
    const VERSIONS: &'static [Version];
    const PLURAL: &'static str;
    /// Whether the server is asked for metadata alone.
    const METADATA_ONLY: bool;
    /// Objects that are asked for at a time: an answer is held whole before it is read.
    const PAGE: u32;

    fn of(object: Object) -> Option<(Self, Option<LeftOut>)>;
    /// `named`: namespaces and names of those that are there, too.
    fn all(all: Vec<Self>, named: Vec<Name>) -> Update;
    fn one(self) -> Update;
    fn gone(key: Name) -> Update;
    /// Its namespace, empty where it has none, and its name.
    fn key(&self) -> Name;

    /// As RBAC rules and people name it.
    fn resource() -> String {
        match Self::GROUP {
            "" => Self::PLURAL.to_owned(),
            group => format!("{}.{group}", Self::PLURAL),
        }
    }
}

impl Kept for Service {
    const KIND: Kind = Kind::Service;
    const GROUP: &'static str = "";
    const VERSIONS: &'static [Version] = &["v1"];
    const PLURAL: &'static str = "services";
    const METADATA_ONLY: bool = false;
    const PAGE: u32 = 500;

    fn of(object: Object) -> Option<(Self, Option<LeftOut>)> {
        match object {
            Object::Service(service) => Some((service, None)),
            _ => None,
        }
    }

    fn all(all: Vec<Self>, named: Vec<Name>) -> Update {
        let id = |(namespace, name): Name| ServiceId { namespace, name };
        Update::AllServices(all, named.into_iter().map(id).collect())
    }

    fn one(self) -> Update {
        Update::Service(self)
    }

    fn gone((namespace, name): Name) -> Update {
        Update::ServiceGone(ServiceId { namespace, name })
    }

    fn key(&self) -> Name {
        (Arc::clone(&self.id.namespace), Arc::clone(&self.id.name))
    }
}

impl Kept for Slice {
    const KIND: Kind = Kind::Slice;
    const GROUP: &'static str = "discovery.k8s.io";
    /// Kubernetes 1.21 brought `v1`, 1.25 took `v1beta1` away.
    const VERSIONS: &'static [Version] = &["v1", "v1beta1"];
    const PLURAL: &'static str = "endpointslices";
    const METADATA_ONLY: bool = false;
    /// A slice with a hundred endpoints has 40 kB.
    const PAGE: u32 = 250;

    fn of(object: Object) -> Option<(Self, Option<LeftOut>)> {
        match object {
            Object::Slice(slice, left_out) => Some((slice, left_out)),
            _ => None,
        }
    }

    fn all(all: Vec<Self>, named: Vec<Name>) -> Update {
        let id = |(namespace, name): Name| SliceId { namespace, name };
        Update::AllSlices(all, named.into_iter().map(id).collect())
    }

    fn one(self) -> Update {
        Update::Slice(self)
    }

    fn gone((namespace, name): Name) -> Update {
        Update::SliceGone(SliceId { namespace, name })
    }

    fn key(&self) -> Name {
        (Arc::clone(&self.id.namespace), Arc::clone(&self.id.name))
    }
}

impl Kept for Node {
    const KIND: Kind = Kind::Node;
    const GROUP: &'static str = "";
    const VERSIONS: &'static [Version] = &["v1"];
    const PLURAL: &'static str = "nodes";
    const METADATA_ONLY: bool = true;
    const PAGE: u32 = 500;

    fn of(object: Object) -> Option<(Self, Option<LeftOut>)> {
        match object {
            Object::Node(node) => Some((node, None)),
            _ => None,
        }
    }

    fn all(all: Vec<Self>, named: Vec<Name>) -> Update {
        Update::AllNodes(all, named.into_iter().map(|(_, name)| name).collect())
    }

    fn one(self) -> Update {
        Update::Node(self)
    }

    fn gone((_, name): Name) -> Update {
        Update::NodeGone(name)
    }

    fn key(&self) -> Name {
        (Arc::default(), Arc::clone(&self.name))
    }
}

/// An object as it came, read at once: what is not needed is never held. That it cannot be read
/// is a fact about it, and must not spoil the list it came in.
#[derive(Clone, Debug)]
pub(super) struct Watched<T> {
    /// Name, namespace and resource version alone.
    metadata: ObjectMeta,
    pub(super) object: Result<(T, Option<LeftOut>), ObjectError>,
}

impl<T: Kept> Watched<T> {
    /// One of a list, from its text.
    pub(super) fn read(text: &[u8], names: &mut Names) -> Self {
        let read = std::str::from_utf8(text)
            .map_err(|_| ObjectError::unreadable(T::KIND))
            .and_then(|text| parse_kind(T::KIND, text, names));
        let object = read.map(|object| T::of(object).expect("a kind is read as itself"));
        Self { metadata: ObjectMeta::default(), object }
    }

    /// Namespace and name; empty where it has none.
    pub(super) fn key(&self) -> Name {
        match &self.object {
            Ok((object, _)) => object.key(),
            Err(error) => match error.identity() {
                Some(identity) => (Arc::clone(&identity.namespace), Arc::clone(&identity.name)),
                None => Name::default(),
            },
        }
    }

    /// Of an object that a watch tells of.
    pub(super) fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

impl<T: Kept> Resource for Watched<T> {
    type DynamicType = Version;
    type Scope = DynamicResourceScope;

    fn kind(_: &Version) -> Cow<'_, str> {
        T::KIND.name().into()
    }

    fn group(_: &Version) -> Cow<'_, str> {
        T::GROUP.into()
    }

    fn version(version: &Version) -> Cow<'_, str> {
        (*version).into()
    }

    fn plural(_: &Version) -> Cow<'_, str> {
        T::PLURAL.into()
    }

    fn metadata_api() -> bool {
        T::METADATA_ONLY
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The parts of an object that may matter. What is left out here, managed fields and status, is
/// most of it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Parts {
    #[serde(default)]
    metadata: MetadataParts,
    #[serde(default)]
    spec: Value,
    #[serde(default)]
    address_type: Value,
    #[serde(default)]
    endpoints: Value,
    #[serde(default)]
    ports: Value,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataParts {
    #[serde(default)]
    name: Value,
    #[serde(default)]
    namespace: Value,
    #[serde(default)]
    uid: Value,
    #[serde(default)]
    resource_version: Value,
    #[serde(default)]
    labels: Value,
    #[serde(default)]
    annotations: Value,
}

impl<'de, T: Kept> Deserialize<'de> for Watched<T> {
    fn deserialize<D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        let Parts { metadata, spec, address_type, endpoints, ports } = Parts::deserialize(object)?;
        let MetadataParts { name, namespace, uid, resource_version, labels, annotations } =
            metadata;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let kept = ObjectMeta {
            name: text(&name),
            namespace: text(&namespace),
            resource_version: text(&resource_version),
            ..ObjectMeta::default()
        };
        // What is absent becomes `null`, which means the same to those who read it.
        let mut fields = json!({
            "metadata": {
                "name": name, "namespace": namespace, "labels": labels, "annotations": annotations,
            },
            "spec": spec,
            "endpoints": endpoints,
            "ports": ports,
        });
        // Events refer to Services, and to nothing else.
        if T::KIND == Kind::Service {
            fields["metadata"]["uid"] = uid;
        }
        if !address_type.is_null() {
            fields["addressType"] = address_type;
        }
        // Who keeps the objects shares the strings that repeat in them.
        let object = parse_kind(T::KIND, &fields, &mut Names::default());
        let object = object.map(|object| T::of(object).expect("a kind is read as itself"));
        Ok(Self { metadata: kept, object })
    }
}

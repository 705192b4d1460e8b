//! The kinds of objects that are watched, as kube-rs asks for them and reads them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use ::kube::Resource;
use ::kube::core::DynamicResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::cluster::{Change, ClusterObject, Node, Service, ServiceId, Slice, SliceId, Update};
use crate::exclusion::Pod;
use crate::source::object::{
    Kind, Names, ObjectError, SkippedEndpoints, Written, read_node, read_pod, read_service,
    read_slice,
};

/// A version of an API group.
pub(super) type Version = &'static str;

/// A kind of object that is watched.
pub(super) trait Kept: Clone + fmt::Debug + Send + Unpin + 'static {
    /// The field `kind` of its objects.
    const NAME: &'static str;
    const GROUP: &'static str = "";
    /// Best first.
    const VERSIONS: &'static [Version] = &["v1"];
    const PLURAL: &'static str;
    /// Whether the server is asked for metadata alone.
    const METADATA_ONLY: bool = false;
    /// Objects that are asked for at a time.
    const PAGE: u32 = 500;

    /// Reads an object; of a slice, also which endpoints were left out.
    fn read(object: impl Written, names: &mut Names) -> Read<Self>;

    /// As RBAC rules and people name it.
    fn resource() -> String {
        match Self::GROUP {
            "" => Self::PLURAL.to_owned(),
            group => format!("{}.{group}", Self::PLURAL),
        }
    }
}

/// What was read of an object.
type Read<T> = Result<(T, Option<SkippedEndpoints>), ObjectError>;

/// A kind of object of which the cluster's state consists.
pub(super) trait StateKind: Kept + ClusterObject<Id: Send> {
    const KIND: Kind;

    fn update(change: Change<Self>) -> Update;
    /// `namespace` is empty for kinds that have none.
    fn id_of(namespace: Arc<str>, name: Arc<str>) -> Self::Id;
}

impl Kept for Service {
    const NAME: &'static str = "Service";
    const PLURAL: &'static str = "services";

    fn read(object: impl Written, names: &mut Names) -> Read<Self> {
        Ok((read_service(object, names)?, None))
    }
}

impl StateKind for Service {
    const KIND: Kind = Kind::Service;

    fn update(change: Change<Self>) -> Update {
        Update::Service(change)
    }

    fn id_of(namespace: Arc<str>, name: Arc<str>) -> ServiceId {
        ServiceId { namespace, name }
    }
}

impl Kept for Slice {
    const NAME: &'static str = "EndpointSlice";
    const GROUP: &'static str = "discovery.k8s.io";
    /// Kubernetes 1.21 brought `v1`, 1.25 took `v1beta1` away.
    const VERSIONS: &'static [Version] = &["v1", "v1beta1"];
    const PLURAL: &'static str = "endpointslices";
    /// A slice with a hundred endpoints has 40 kB.
    const PAGE: u32 = 250;

    fn read(object: impl Written, names: &mut Names) -> Read<Self> {
        read_slice(object, names)
    }
}

impl StateKind for Slice {
    const KIND: Kind = Kind::Slice;

    fn update(change: Change<Self>) -> Update {
        Update::Slice(change)
    }

    fn id_of(namespace: Arc<str>, name: Arc<str>) -> SliceId {
        SliceId { namespace, name }
    }
}

impl Kept for Node {
    const NAME: &'static str = "Node";
    const PLURAL: &'static str = "nodes";
    const METADATA_ONLY: bool = true;

    fn read(object: impl Written, names: &mut Names) -> Read<Self> {
        Ok((read_node(object, names)?, None))
    }
}

impl StateKind for Node {
    const KIND: Kind = Kind::Node;

    fn update(change: Change<Self>) -> Update {
        Update::Node(change)
    }

    fn id_of(_: Arc<str>, name: Arc<str>) -> Arc<str> {
        name
    }
}

impl Kept for Pod {
    const NAME: &'static str = "Pod";
    const PLURAL: &'static str = "pods";
    const METADATA_ONLY: bool = true;

    fn read(object: impl Written, names: &mut Names) -> Read<Self> {
        Ok((read_pod(object, names)?, None))
    }
}

/// An object as it came, read at once: what is not needed is never held. An object that cannot be
/// read does not spoil the list it came in.
#[derive(Clone, Debug)]
pub(super) struct Watched<T> {
    /// The resource version alone.
    metadata: ObjectMeta,
    pub(super) object: Read<T>,
}

impl<T: Kept> Watched<T> {
    /// One of a list, from its text.
    pub(super) fn read(text: &[u8], names: &mut Names) -> Self {
        let object = std::str::from_utf8(text)
            .map_err(|_| ObjectError::unreadable(T::NAME))
            .and_then(|text| T::read(text, names));
        Self { metadata: ObjectMeta::default(), object }
    }

    /// Of an object that a watch tells of.
    pub(super) fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

impl<T: StateKind> Watched<T> {
    /// Its id; of empty names if it has none.
    pub(super) fn id(&self) -> T::Id {
        match &self.object {
            Ok((object, _)) => object.id().clone(),
            Err(error) => match error.identity() {
                Some(identity) => {
                    T::id_of(Arc::clone(&identity.namespace), Arc::clone(&identity.name))
                }
                None => T::id_of(Arc::default(), Arc::default()),
            },
        }
    }
}

impl<T: Kept> Resource for Watched<T> {
    type DynamicType = Version;
    type Scope = DynamicResourceScope;

    fn kind(_: &Version) -> Cow<'_, str> {
        T::NAME.into()
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

impl<'de, T: Kept> Deserialize<'de> for Watched<T> {
    fn deserialize<D: Deserializer<'de>>(object: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(object)?;
        let version = object.pointer("/metadata/resourceVersion").and_then(Value::as_str);
        let metadata =
            ObjectMeta { resource_version: version.map(str::to_owned), ..ObjectMeta::default() };
        // The state that keeps the objects shares the strings that repeat in them.
        Ok(Self { metadata, object: T::read(&object, &mut Names::default()) })
    }
}

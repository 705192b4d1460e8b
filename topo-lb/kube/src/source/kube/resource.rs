//! The watched kinds, as kube-rs requests and parses them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use ::kube::Resource;
use ::kube::core::DynamicResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::crd;
use crate::source::object::{Kind, Names, ObjectError, ParseResult, Parsed};
use topo_lb_core::cluster::{
    Change, ClusterObject, ClusterTopologyPolicy, Leaving, Namespace, Node, PolicyId, Service,
    ServiceId, Slice, SliceId, TopologyPolicy, Update,
};
use topo_lb_core::exclusion::Pod;

/// A version of an API group.
pub(super) type Version = &'static str;

pub(super) trait Kept: Parsed + Clone + fmt::Debug + Send + Unpin + 'static {
    /// The field `kind` of its objects.
    const NAME: &'static str;
    const GROUP: &'static str = "";
    /// In order of preference.
    const VERSIONS: &'static [Version] = &["v1"];
    const PLURAL: &'static str;
    /// Whether only the metadata is requested.
    const METADATA_ONLY: bool = false;
    /// Objects per page.
    const PAGE: u32 = 500;

    /// The name in RBAC rules and messages.
    fn resource() -> String {
        match Self::GROUP {
            "" => Self::PLURAL.to_owned(),
            group => format!("{}.{group}", Self::PLURAL),
        }
    }
}

/// A kind of object in the cluster's state.
pub(super) trait StateKind: Kept + ClusterObject<Id: Send> {
    const KIND: Kind;
    /// Whether topo-lb works as well if the server does not have the kind, or the role does not allow to
    /// read it: policies of Services alone remain.
    const OPTIONAL: bool = !Self::KIND.is_required();
    /// Whether one can delete the kind itself, with all its objects.
    const IS_CUSTOM: bool =
        matches!(Self::KIND, Kind::TopologyPolicy | Kind::ClusterTopologyPolicy);

    fn update(change: Change<Self>) -> Update;
    /// `namespace` is empty for kinds without one.
    fn id_of(namespace: Arc<str>, name: Arc<str>) -> Self::Id;
}

macro_rules! state_kind {
    ($kind:ident, $id_of:expr) => {
        impl StateKind for $kind {
            const KIND: Kind = Kind::$kind;

            fn update(change: Change<Self>) -> Update {
                Update::$kind(change)
            }

            fn id_of(namespace: Arc<str>, name: Arc<str>) -> Self::Id {
                $id_of(namespace, name)
            }
        }
    };
}

state_kind!(Service, |namespace, name| ServiceId { namespace, name });
state_kind!(Slice, |namespace, name| SliceId { namespace, name });
state_kind!(Node, |_, name| name);
state_kind!(Namespace, |_, name| name);
state_kind!(TopologyPolicy, |namespace, name| PolicyId { namespace, name });
state_kind!(ClusterTopologyPolicy, |_, name| PolicyId { namespace: Arc::default(), name });

impl Kept for Service {
    const NAME: &'static str = "Service";
    const PLURAL: &'static str = "services";
}

impl Kept for Slice {
    const NAME: &'static str = "EndpointSlice";
    const GROUP: &'static str = "discovery.k8s.io";
    /// Kubernetes 1.21 added `v1`, 1.25 removed `v1beta1`.
    const VERSIONS: &'static [Version] = &["v1", "v1beta1"];
    const PLURAL: &'static str = "endpointslices";
    /// A slice with 100 endpoints has 40 kB.
    const PAGE: u32 = 250;
}

impl Kept for Node {
    const NAME: &'static str = "Node";
    const PLURAL: &'static str = "nodes";
    const METADATA_ONLY: bool = true;
}

impl Kept for Namespace {
    const NAME: &'static str = "Namespace";
    const PLURAL: &'static str = "namespaces";
    const METADATA_ONLY: bool = true;
}

impl Kept for TopologyPolicy {
    const NAME: &'static str = "TopologyPolicy";
    const GROUP: &'static str = crd::GROUP;
    const VERSIONS: &'static [Version] = &[crd::VERSION];
    const PLURAL: &'static str = "topologypolicies";
}

impl Kept for ClusterTopologyPolicy {
    const NAME: &'static str = "ClusterTopologyPolicy";
    const GROUP: &'static str = crd::GROUP;
    const VERSIONS: &'static [Version] = &[crd::VERSION];
    const PLURAL: &'static str = "clustertopologypolicies";
}

impl Kept for Pod {
    const NAME: &'static str = "Pod";
    const PLURAL: &'static str = "pods";
    const METADATA_ONLY: bool = true;
}

impl Kept for Leaving {
    const NAME: &'static str = "Node";
    const PLURAL: &'static str = "nodes";
}

/// An object, parsed on arrival to save memory. An unreadable one does not affect the others.
#[derive(Clone, Debug)]
pub(super) struct Watched<T> {
    /// Only the resource version.
    metadata: ObjectMeta,
    pub(super) object: ParseResult<T>,
}

impl<T: Kept> Watched<T> {
    /// Parses an object of a list.
    pub(super) fn read(text: &[u8], names: &mut Names) -> Self {
        let object = std::str::from_utf8(text)
            .map_err(|_| ObjectError::unreadable(T::NAME))
            .and_then(|text| T::parsed(text, names));
        Self { metadata: ObjectMeta::default(), object }
    }

    /// The version of an object from a watch; empty for one from a list.
    pub(super) fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

impl<T: StateKind> Watched<T> {
    /// Its id; with empty names if it has none.
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
        // No shared names: the state deduplicates the strings.
        Ok(Self { metadata, object: T::parsed(&object, &mut Names::default()) })
    }
}

//! Parses the fields of Kubernetes objects that topology needs. `null` is the same as absent,
//! because Kubernetes writes it for empty lists. Errors have the names of object and field.

mod client;
mod error;
mod field;
mod kind;
mod leaving;
mod names;
mod namespace;
mod node;
mod parsed;
mod plain;
mod pod;
mod policy;
mod service;
mod slice;
mod unread;
mod written;

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

pub use error::{Identity, ObjectError, SkippedEndpoints};
pub use kind::Kind;
pub use names::Names;
pub use parsed::{ParseResult, Parsed};
pub(super) use plain::plain;
pub(super) use unread::unread;
pub use written::Written;

use topo_lb_core::cluster::client::Client;
use topo_lb_core::{cluster, exclusion};

use parsed::named;

/// An object of any kind; only some kinds are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A `v1` Service.
    Service(cluster::Service),
    /// A `discovery.k8s.io` `v1` or `v1beta1` EndpointSlice, and its skipped endpoints.
    Slice(cluster::Slice, Option<SkippedEndpoints>),
    /// A `v1` Node.
    Node(cluster::Node),
    /// A `v1` Namespace, and its facts about clients.
    Namespace(cluster::Namespace, Client),
    /// A TopologyPolicy of this project's API group.
    TopologyPolicy(cluster::TopologyPolicy),
    /// A ClusterTopologyPolicy of this project's API group.
    ClusterTopologyPolicy(cluster::ClusterTopologyPolicy),
    /// A `v1` Pod, with its identity if it has one.
    Client(Client, Option<exclusion::Pod>),
    /// An object of any other kind.
    Other,
}

impl Object {
    /// The identity of an object of a [`Kind`].
    #[must_use]
    pub fn identity(&self) -> Option<Identity> {
        let (kind, namespace, name) = match self {
            Self::Service(service) => (Kind::Service, &service.id.namespace, &service.id.name),
            Self::Slice(slice, _) => (Kind::Slice, &slice.id.namespace, &slice.id.name),
            Self::Node(node) => (Kind::Node, &Arc::default(), &node.name),
            Self::Namespace(namespace, _) => (Kind::Namespace, &Arc::default(), &namespace.name),
            Self::TopologyPolicy(policy) => {
                (Kind::TopologyPolicy, &policy.id.namespace, &policy.id.name)
            }
            Self::ClusterTopologyPolicy(policy) => {
                (Kind::ClusterTopologyPolicy, &policy.0.id.namespace, &policy.0.id.name)
            }
            Self::Client(..) | Self::Other => return None,
        };
        Some(Identity { kind, namespace: Arc::clone(namespace), name: Arc::clone(name) })
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Head {
    #[serde(rename = "apiVersion")]
    api_version: Option<String>,
    kind: Option<String>,
}

/// The content of a document.
#[derive(Clone, Debug)]
pub enum Content<W> {
    /// One object.
    Object,
    /// Objects of any kind: a `v1` List.
    List(Vec<W>),
    /// Objects of one [`Kind`], as in a ServiceList. They may lack `kind`.
    Typed(Kind, Vec<W>),
}

/// Tells lists from single objects.
///
/// # Errors
/// The field `items` of a list is not a list.
pub fn content<W: Written>(document: W) -> Result<Content<W>, ObjectError> {
    let head: Head = document.read()?;
    let (Some(api_version), Some(kind)) = (head.api_version, head.kind) else {
        return Ok(Content::Object);
    };
    let items = || document.items().map_err(|error| error.of(&*kind));
    if (&*api_version, &*kind) == ("v1", "List") {
        return Ok(Content::List(items()?));
    }
    match kind.strip_suffix("List").and_then(|kind| Kind::of(&api_version, kind)) {
        Some(kind) => Ok(Content::Typed(kind, items()?)),
        None => Ok(Content::Object),
    }
}

/// Parses one object.
///
/// # Errors
/// It has no `kind` or `apiVersion`, or is of a [`Kind`] and has a wrong field.
pub fn parse(object: Value) -> Result<Object, ObjectError> {
    parse_with(&object, &mut Names::default())
}

/// Like [`parse`], and shares repeated strings.
///
/// # Errors
/// As [`parse`].
pub fn parse_with(object: impl Written, names: &mut Names) -> Result<Object, ObjectError> {
    let head: Head = object.read()?;
    let kind = head.kind.as_deref().unwrap_or_default();
    if kind.is_empty() {
        return Err(ObjectError::at("kind", "is missing: this is no Kubernetes object"));
    }
    let Some(api_version) = head.api_version.filter(|version| !version.is_empty()) else {
        let title = match named(object) {
            Some((namespace, name)) => format!("{kind} {namespace}/{name}"),
            None => kind.to_owned(),
        };
        return Err(ObjectError::at("apiVersion", "is missing").of(title));
    };
    match Kind::of(&api_version, kind) {
        Some(kind) => parse_kind(kind, object, names),
        // Not skipped silently: users would miss its items.
        None if kind == "List" => {
            Err(ObjectError::at("kind", "a List within a list is not read: take its items out"))
        }
        None if (&*api_version, kind) == ("v1", "Pod") => {
            let pod = Parsed::parsed(object, names).ok().map(|(pod, _)| pod);
            Ok(Object::Client(client::client(true, object).unwrap_or_default(), pod))
        }
        None => Ok(Object::Other),
    }
}

/// Parses one object of a known kind, such as an item of a typed list, which may lack `kind`.
///
/// # Errors
/// A field is wrong.
pub fn parse_kind(
    kind: Kind,
    object: impl Written,
    names: &mut Names,
) -> Result<Object, ObjectError> {
    Ok(match kind {
        Kind::Service => Object::Service(Parsed::parsed(object, names)?.0),
        Kind::Slice => {
            let (slice, skipped) = Parsed::parsed(object, names)?;
            Object::Slice(slice, skipped)
        }
        Kind::Node => Object::Node(Parsed::parsed(object, names)?.0),
        Kind::Namespace => {
            let client = client::client(false, object).unwrap_or_default();
            Object::Namespace(Parsed::parsed(object, names)?.0, client)
        }
        Kind::TopologyPolicy => Object::TopologyPolicy(Parsed::parsed(object, names)?.0),
        Kind::ClusterTopologyPolicy => {
            Object::ClusterTopologyPolicy(Parsed::parsed(object, names)?.0)
        }
    })
}

#[cfg(test)]
mod tests;

//! What is kept of an object of each known kind.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::error::{Identity, ObjectError, SkippedEndpoints};
use super::kind::Kind;
use super::names::Names;
use super::written::Written;
use super::{field, leaving, namespace, node, pod, policy, service, slice};
use crate::crd::{ClusterTopologyPolicySpec, TopologyPolicySpec};
use topo_lb_core::{cluster, exclusion};

/// An object, and the endpoints that were skipped if it is a slice.
pub type ParseResult<T> = Result<(T, Option<SkippedEndpoints>), ObjectError>;

/// What is kept of an object of a known kind.
pub trait Parsed: Sized {
    /// Parses an object.
    ///
    /// # Errors
    /// A field is wrong. A Pod must have a UID: a template of a Pod does not run.
    fn parsed(object: impl Written, names: &mut Names) -> ParseResult<Self>;
}

impl Parsed for cluster::Service {
    fn parsed(object: impl Written, names: &mut Names) -> ParseResult<Self> {
        let service = object.read::<service::Fields>().and_then(|service| service.keep(names));
        Ok((service.map_err(|error| identified(error, Kind::Service, object))?, None))
    }
}

impl Parsed for cluster::Slice {
    fn parsed(object: impl Written, names: &mut Names) -> ParseResult<Self> {
        let slice = object.read::<slice::Fields>().map(|slice| slice.keep(names));
        slice.map_err(|error| identified(error, Kind::Slice, object))
    }
}

impl Parsed for cluster::Node {
    fn parsed(object: impl Written, names: &mut Names) -> ParseResult<Self> {
        let node = object.read::<node::Fields>().map(|node| node.keep(names));
        Ok((node.map_err(|error| identified(error, Kind::Node, object))?, None))
    }
}

impl Parsed for cluster::Namespace {
    fn parsed(object: impl Written, names: &mut Names) -> ParseResult<Self> {
        let namespace = object.read::<namespace::Fields>().map(|it| it.keep(names));
        Ok((namespace.map_err(|error| identified(error, Kind::Namespace, object))?, None))
    }
}

impl Parsed for cluster::TopologyPolicy {
    fn parsed(object: impl Written, names: &mut Names) -> ParseResult<Self> {
        let policy = object.read::<policy::Fields<TopologyPolicySpec>>();
        let policy = policy.and_then(|policy| policy.keep(names, true));
        Ok((policy.map_err(|error| identified(error, Kind::TopologyPolicy, object))?, None))
    }
}

impl Parsed for cluster::ClusterTopologyPolicy {
    fn parsed(object: impl Written, names: &mut Names) -> ParseResult<Self> {
        let policy = object.read::<policy::Fields<ClusterTopologyPolicySpec>>();
        let policy = policy.and_then(|policy| policy.keep(names, false));
        let policy = policy.map(cluster::ClusterTopologyPolicy);
        Ok((policy.map_err(|error| identified(error, Kind::ClusterTopologyPolicy, object))?, None))
    }
}

impl Parsed for exclusion::Pod {
    fn parsed(object: impl Written, names: &mut Names) -> ParseResult<Self> {
        Ok((object.read::<pod::Fields>()?.keep(names), None))
    }
}

impl Parsed for cluster::Leaving {
    fn parsed(object: impl Written, _: &mut Names) -> ParseResult<Self> {
        Ok((object.read::<leaving::Fields>()?.keep(), None))
    }
}

/// Adds the object's kind, and its name if it has one, to the error.
fn identified(error: ObjectError, kind: Kind, object: impl Written) -> ObjectError {
    match named(object) {
        None => error.of(kind.to_string()),
        Some((namespace, name)) => error.of_known(Identity {
            kind,
            namespace: if kind.is_namespaced() { namespace.into() } else { Arc::default() },
            name: name.into(),
        }),
    }
}

/// Namespace and name of an object that may be broken; `None` without a name.
pub(super) fn named(object: impl Written) -> Option<(String, String)> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Metadata,
    }
    #[derive(Deserialize)]
    struct Metadata {
        name: Value,
        #[serde(default)]
        namespace: Value,
    }
    let Named { metadata: Metadata { name, namespace } } = object.read().ok()?;
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let namespace = text(&namespace).unwrap_or_else(|| field::DEFAULT_NAMESPACE.to_owned());
    Some((namespace, text(&name)?))
}

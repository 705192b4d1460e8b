//! What is kept of an object of each known kind.

use super::{
    Kind, Names, ObjectError, SkippedEndpoints, Written, identified, leaving, namespace, node, pod,
    policy, service, slice,
};
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

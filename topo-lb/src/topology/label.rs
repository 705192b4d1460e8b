//! Where a node and an endpoint are: their labels, their node pool, how far apart they are.

use topo_lb_common::backend::Locality;

use crate::cluster::Endpoint;
use crate::cluster::{KnownNodes, Labels, State};

/// The Node's own name, as a label.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// The zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The region.
pub const REGION: &str = "topology.kubernetes.io/region";
/// OpenYurt: the pool that a Node is in.
pub const NODEPOOL: &str = "apps.openyurt.io/nodepool";
/// OpenYurt: the pool that a Node is to be in.
pub const DESIRED_NODEPOOL: &str = "apps.openyurt.io/desired-nodepool";

/// The node that decides: this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'a> {
    pub(super) name: &'a str,
    /// `None` where the cluster has no such Node.
    pub(super) labels: Option<&'a Labels>,
}

impl<'a> Here<'a> {
    pub(super) fn of(state: &'a State, name: &'a str) -> Self {
        Self { name, labels: state.node(name) }
    }

    /// A label of this node. Nothing falls back to its name: a node that is unknown, or that
    /// lacks the label, has no value for the key.
    pub(super) fn label(&self, key: &str) -> Option<&'a str> {
        self.labels.and_then(|labels| labels.get(key)).map(|value| &**value)
    }

    pub(super) fn pool(&self) -> Option<&'a str> {
        self.labels.and_then(pool)
    }
}

/// Why an endpoint has no value for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent<'a> {
    /// The endpoint names no node.
    NoNode,
    /// The cluster has no Node of this name.
    UnknownNode(&'a str),
    /// This agent does not watch the Node of this name: no decision reads its labels.
    UnwatchedNode(&'a str),
    /// The Node of this name does not carry the label.
    NoLabel(&'a str),
}

/// An endpoint and the Node that it is on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Site<'a> {
    pub(super) endpoint: &'a Endpoint,
    /// Labels of its Node; `None` without a node, or where the cluster has no such Node.
    home: Option<&'a Labels>,
    known_nodes: KnownNodes,
}

impl<'a> Site<'a> {
    pub(super) fn of(state: &'a State, endpoint: &'a Endpoint) -> Self {
        let home = endpoint.node().and_then(|name| state.node(name));
        Self { endpoint, home, known_nodes: state.known_nodes() }
    }

    pub(super) fn node(&self) -> Option<&'a str> {
        self.endpoint.node().map(|name| &**name)
    }

    /// The endpoint's value for `key`: what its slice carries, else the label of its Node, else
    /// for the hostname of an unknown Node that Node's name.
    pub(super) fn label(&self, key: &str) -> Result<&'a str, Absent<'a>> {
        if let Some(value) = self.endpoint.label(key) {
            return Ok(value);
        }
        let node = self.node().ok_or(Absent::NoNode)?;
        match self.home {
            Some(labels) => labels.get(key).map(|value| &**value).ok_or(Absent::NoLabel(node)),
            None if key == HOSTNAME => Ok(node),
            None => Err(self.unknown(node)),
        }
    }

    /// Why nothing is known of the node that this endpoint names.
    const fn unknown(&self, node: &'a str) -> Absent<'a> {
        match self.known_nodes {
            KnownNodes::All => Absent::UnknownNode(node),
            KnownNodes::Own => Absent::UnwatchedNode(node),
        }
    }

    /// The node pool that it is in. Pools are sets of Nodes: what a slice carries does not count.
    pub(super) fn pool(&self) -> Result<&'a str, Absent<'a>> {
        let node = self.node().ok_or(Absent::NoNode)?;
        let labels = self.home.ok_or_else(|| self.unknown(node))?;
        pool(labels).ok_or(Absent::NoLabel(node))
    }

    pub(super) fn is_on(&self, node: &str) -> bool {
        self.node() == Some(node)
    }

    pub(super) fn locality(&self, here: Here<'_>) -> Locality {
        let shares = |key| here.label(key).is_some_and(|value| self.label(key) == Ok(value));
        if self.is_on(here.name) {
            Locality::Node
        } else if shares(ZONE) {
            Locality::Zone
        } else if shares(REGION) {
            Locality::Region
        } else {
            Locality::Elsewhere
        }
    }
}

/// A pool without a name is no pool.
fn pool(labels: &Labels) -> Option<&str> {
    [NODEPOOL, DESIRED_NODEPOOL]
        .into_iter()
        .filter_map(|key| labels.get(key))
        .map(|value| &**value)
        .find(|value| !value.is_empty())
}

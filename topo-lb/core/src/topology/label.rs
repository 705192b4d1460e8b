//! Labels, node pools and distance of nodes and endpoints.

use topo_lb_common::backend::Locality;

use crate::cluster::{Endpoint, KnownNodes, Labels, State};

pub use crate::cluster::{HOSTNAME, REGION, ZONE};

/// OpenYurt's label: the pool that a Node is in.
pub const NODEPOOL: &str = "apps.openyurt.io/nodepool";
/// OpenYurt's label: the pool that a Node is to join.
pub const DESIRED_NODEPOOL: &str = "apps.openyurt.io/desired-nodepool";

/// The node that the decision is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Here<'a> {
    pub(super) name: &'a str,
    /// `None` if the Node is unknown.
    pub(super) labels: Option<&'a Labels>,
}

impl<'a> Here<'a> {
    pub(super) fn of(state: &'a State, name: &'a str) -> Self {
        Self { name, labels: state.node(name) }
    }

    /// A label of this node. A missing label never falls back to the node's name.
    pub(super) fn label(&self, key: &str) -> Option<&'a str> {
        self.labels.and_then(|labels| labels.get(key)).map(|value| &**value)
    }

    /// The node's pool, and the label that says it.
    pub(super) fn pool(&self) -> Option<(&'static str, &'a str)> {
        self.labels.and_then(pool)
    }
}

/// Why an endpoint has no value for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent<'a> {
    /// The endpoint has no node name.
    NoNode,
    /// The cluster has no Node of this name.
    UnknownNode(&'a str),
    /// The agent does not watch this Node, because no decision reads its labels.
    UnwatchedNode(&'a str),
    /// This Node lacks the label.
    NoLabel(&'a str),
}

/// Where an endpoint is.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    pub(super) endpoint: &'a Endpoint,
    /// Labels of its Node; `None` if it has no node name, or its Node is unknown.
    home: Option<&'a Labels>,
    known_nodes: KnownNodes,
    /// The region of its zone; `None` if the slice gives no zone, or nobody asked.
    zone_region: Option<&'a str>,
}

impl<'a> Site<'a> {
    pub(super) fn of(state: &'a State, endpoint: &'a Endpoint) -> Self {
        let home = endpoint.node().and_then(|name| state.node(name));
        let zone_region = endpoint.label(ZONE).and_then(|zone| state.region_of(zone));
        Self { endpoint, home, known_nodes: state.known_nodes(), zone_region }
    }

    /// The region, for counting only: policies read [`label`](Self::label), which holds exactly.
    fn region(&self) -> Option<&'a str> {
        self.label(REGION).ok().or(self.zone_region)
    }

    /// `nodeName`.
    #[must_use]
    pub fn node(&self) -> Option<&'a str> {
        self.endpoint.node().map(|name| &**name)
    }

    /// The endpoint's value for `key`: from its slice, else from its Node. For an unknown Node,
    /// [`HOSTNAME`] is the Node's name.
    ///
    /// # Errors
    /// Why it has none.
    pub fn label(&self, key: &str) -> Result<&'a str, Absent<'a>> {
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

    const fn unknown(&self, node: &'a str) -> Absent<'a> {
        match self.known_nodes {
            KnownNodes::All => Absent::UnknownNode(node),
            KnownNodes::Own => Absent::UnwatchedNode(node),
        }
    }

    /// The endpoint's node pool. Pools are sets of Nodes, so labels of the slice do not count.
    pub(super) fn pool(&self) -> Result<&'a str, Absent<'a>> {
        let node = self.node().ok_or(Absent::NoNode)?;
        let labels = self.home.ok_or_else(|| self.unknown(node))?;
        pool(labels).map(|(_, pool)| pool).ok_or(Absent::NoLabel(node))
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
        } else if here.label(REGION).is_some_and(|own| self.region() == Some(own)) {
            Locality::Region
        } else {
            Locality::Elsewhere
        }
    }
}

/// The label that says the Node's pool, and the pool; an empty label value counts as none.
fn pool(labels: &Labels) -> Option<(&'static str, &str)> {
    [NODEPOOL, DESIRED_NODEPOOL]
        .into_iter()
        .filter_map(|key| Some((key, &**labels.get(key)?)))
        .find(|(_, value)| !value.is_empty())
}

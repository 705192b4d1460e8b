//! A Node: its name and labels, which is all that topology needs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::labels::Labels;

/// Which Nodes a source sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KnownNodes {
    /// Only this node's.
    Own,
    /// All Nodes of the cluster.
    #[default]
    All,
}

/// A Node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// `metadata.name`.
    pub name: Arc<str>,
    /// `metadata.labels`.
    pub labels: Labels,
}

/// The region that the Nodes of a zone are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZoneRegion {
    /// A value of the label `topology.kubernetes.io/zone`.
    pub zone: Arc<str>,
    /// The value of the label `topology.kubernetes.io/region` of the zone's Nodes.
    pub region: Arc<str>,
}

/// Whether a Node is about to leave: load balancers should send it no new connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leaving(pub bool);

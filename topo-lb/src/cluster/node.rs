//! A Node: its name and its labels. Nothing else of it matters to topology.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::labels::Labels;

/// Which Nodes a source tells of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KnownNodes {
    /// This node's own.
    Own,
    /// All of the cluster.
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

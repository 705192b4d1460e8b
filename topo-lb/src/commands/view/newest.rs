//! What is known after the newest look.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use crate::commands::top::{Row, Zones};
use topo_lb_core::topology::Scope;

/// What is known after the newest look.
#[derive(Debug, Default)]
pub(super) struct Newest {
    /// Grows with each look.
    pub(super) look: u64,
    /// When, in seconds since 1970.
    pub(super) at: u64,
    /// The rates of each Service; empty until there were two looks.
    pub(super) rows: Vec<Row>,
    /// Bytes a second by zone, of the nodes that measure them.
    pub(super) zones: BTreeMap<Arc<str>, Zones>,
    /// All nodes that were asked.
    pub(super) agents: Vec<Arc<str>>,
    /// Those that answered both times.
    pub(super) answered: HashSet<Arc<str>>,
    /// Why others are missing.
    pub(super) troubles: BTreeMap<Arc<str>, String>,
    /// Why nobody could be asked, or what to know of the counts.
    pub(super) sentence: Option<String>,
    /// How many agents only observe.
    pub(super) observing: usize,
    /// How many agents count all connections, also those that topo-lb leaves alone.
    pub(super) counting_all: usize,
    /// Which Services agents handle, as far as their Pods say.
    pub(super) scope: Option<Scope>,
}

impl Newest {
    /// Whether no agent leaves out what topo-lb leaves alone.
    pub(super) fn all_count_all(&self) -> bool {
        self.counting_all > 0 && self.counting_all >= self.agents.len()
    }
}

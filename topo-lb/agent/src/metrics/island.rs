//! Figures of a node that is an island.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use strum::VariantArray as _;

use super::families::Families;
use topo_lb_core::ejection::island::Answer;
use topo_lb_core::metrics::declared;

/// What the agent counts of islands.
#[derive(Debug, Default)]
pub struct IslandFigures {
    /// Whether this node is one: 0 or 1.
    pub is_island: AtomicU64,
    /// Endpoints that do not answer it, and get no new connections.
    pub dead: AtomicU64,
    /// Services of which none answers it.
    pub silent: AtomicU64,
    /// Probes by outcome, in the order of [`Answer::VARIANTS`].
    pub probes: [AtomicU64; Answer::VARIANTS.len()],
}

pub(super) fn encode(figures: &IslandFigures, families: &mut Families<'_, '_>) -> fmt::Result {
    families.one(&declared::ISLAND, figures.is_island.load(Relaxed))?;
    families.one(&declared::DEAD_ENDPOINTS, figures.dead.load(Relaxed))?;
    families.one(&declared::SILENT_SERVICES, figures.silent.load(Relaxed))?;
    let outcomes = Answer::VARIANTS.iter().map(<&str>::from);
    families.by(&declared::ISLAND_PROBES, outcomes.zip(&figures.probes))
}

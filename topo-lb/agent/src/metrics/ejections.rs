//! Figures of endpoints that are ejected.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use topo_lb_common::totals::Failure;

use super::families::Families;
use topo_lb_core::ejection::Probed;
use topo_lb_core::metrics::declared;

/// What the agent counts of ejections.
#[derive(Debug, Default)]
pub struct EjectionFigures {
    /// Endpoints that are ejected.
    pub ejected: AtomicU64,
    /// Ejections by how the last connect failed, in the order of `Failure::ALL`.
    pub ejections: [AtomicU64; 4],
    /// Probes by outcome, in the order of `Probed::ALL`.
    pub probes: [AtomicU64; 3],
}

pub(super) fn encode(figures: &EjectionFigures, families: &mut Families<'_, '_>) -> fmt::Result {
    families.one(&declared::EJECTED_ENDPOINTS, figures.ejected.load(Relaxed))?;
    let failures = Failure::ALL.map(Failure::name).into_iter();
    families.by(&declared::EJECTIONS, failures.zip(&figures.ejections))?;
    let outcomes = Probed::ALL.iter().map(|probed| probed.name());
    families.by(&declared::EJECTION_PROBES, outcomes.zip(&figures.probes))
}

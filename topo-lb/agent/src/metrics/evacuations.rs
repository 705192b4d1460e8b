//! Figures of evacuations.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use super::families::Families;
use topo_lb_core::metrics::declared;
use topo_lb_core::topology::evacuated::Evacuated;

/// Most evacuations with a series of their own: who may annotate Services could write thousands.
const MOST: usize = 16;

/// What the agent knows of evacuations.
#[derive(Debug, Default)]
pub struct EvacuationFigures {
    /// Objects that evacuate endpoints and hold on this node.
    objects: AtomicU64,
    /// What holds on this node, and how many Services have endpoints there.
    services: Mutex<BTreeMap<Evacuated, usize>>,
}

impl EvacuationFigures {
    /// So many objects say this now.
    pub fn set(&self, objects: usize, services: BTreeMap<Evacuated, usize>) {
        self.objects.store(objects as u64, Relaxed);
        *self.services.lock().unwrap_or_else(PoisonError::into_inner) = services;
    }
}

pub(super) fn encode(figures: &EvacuationFigures, families: &mut Families<'_, '_>) -> fmt::Result {
    families.one(&declared::EVACUATIONS, figures.objects.load(Relaxed))?;
    let services = figures.services.lock().unwrap_or_else(PoisonError::into_inner);
    let mut family = families.begin(&declared::EVACUATED_SERVICES)?;
    for (evacuated, count) in services.iter().take(MOST) {
        let Evacuated { key, value, .. } = evacuated;
        family.sample(&[key, value, &evacuated.end()], *count as u64)?;
    }
    Ok(())
}

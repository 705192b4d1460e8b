//! What all tasks of the resolver use.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::metrics::Figures;
use crate::metrics::dns::DnsOutcome;
use topo_lb_core::dns::names::SharedNames;

/// What all tasks of the resolver use.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) names: SharedNames,
    pub(super) figures: Arc<Figures>,
}

impl Shared {
    pub(super) fn count(&self, outcome: DnsOutcome) {
        self.figures.dns.queries[outcome as usize].fetch_add(1, Relaxed);
    }
}

//! Attributes the connections that the kernel tells of, while topo-lb only observes.

use std::sync::Arc;

use tracing::{info, warn};

use super::config::Config;
use crate::metrics::Figures;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::Scope;
use topo_lb_kernel::observe::{Listener, Observed, attribute};

/// What has been heard, and where it is counted.
pub(super) struct Observer {
    listener: Listener,
    observed: Arc<Observed>,
    scope: Scope,
}

impl Observer {
    /// Starts to listen; `None` if the agent translates, or the kernel tells nothing.
    pub(super) fn start(
        config: &Config,
        observed: Option<Arc<Observed>>,
        figures: &Arc<Figures>,
    ) -> Option<Self> {
        let observed = observed?;
        info!("topo-lb only observes: it counts what it would do, and translates nothing");
        match Listener::start(Arc::clone(&figures.observer_overruns)) {
            Ok(listener) => Some(Self { listener, observed, scope: config.scope }),
            Err(error) => {
                warn!("only what would be is counted, and not what happens: {error}");
                None
            }
        }
    }

    /// Counts what has been heard since the last time.
    pub(super) fn look(&self, reconciler: &Reconciler) {
        let heard = self.listener.take();
        self.observed.add(attribute(reconciler.state(), reconciler.node(), self.scope, heard));
    }
}

//! What the agent knows of the cluster.

use tracing::warn;

use crate::cluster::{Change, Update};
use crate::metrics::count;
use crate::reconcile::Reconciler;
use crate::source::Event;
use crate::source::saved::Saver;
use crate::stale_write_gate::StaleWriteGate;
use crate::telemetry::{Arrival, Telemetry};

/// What is known of the cluster, how fresh it is, who saves it, and who is told.
pub struct AgentState {
    /// The cluster, and what follows from it.
    pub reconciler: Reconciler,
    /// How fresh it is.
    pub write_gate: StaleWriteGate,
    /// Keeps it for the next start.
    pub saver: Saver,
    /// Tells others.
    pub telemetry: Telemetry,
}

impl AgentState {
    /// Of one that knows nothing yet.
    #[must_use]
    pub fn new(reconciler: Reconciler, saver: Saver, telemetry: Telemetry) -> Self {
        Self { reconciler, write_gate: StaleWriteGate::default(), saver, telemetry }
    }

    /// Takes in what a source says; whether that was a listing of all objects of a kind, which takes
    /// much memory.
    pub fn take_in(&mut self, event: Event) -> bool {
        match event {
            Event::Update(update) => {
                let listed = matches!(
                    update,
                    Update::Node(Change::Listed(..))
                        | Update::Slice(Change::Listed(..))
                        | Update::Service(Change::Listed(..))
                );
                self.telemetry.listed(&update);
                let arrival = Arrival::of(&update);
                let is_change = self.reconciler.observe(update);
                self.telemetry.took_in(arrival, is_change);
                self.saver.changed();
                listed
            }
            Event::Freshness(freshness) => {
                self.write_gate.observe(freshness);
                self.saver.observe(freshness);
                self.telemetry.fresh(freshness);
                false
            }
            // Whoever excludes Pods has taken them out before.
            Event::Synced | Event::Pods(_) => false,
            Event::Trouble(sentence) => {
                warn!("{sentence}");
                count(&self.telemetry.figures.troubles);
                false
            }
        }
    }
}

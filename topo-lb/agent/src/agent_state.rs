//! What the agent knows of the cluster.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Instant, SystemTime};

use tracing::warn;

use crate::metrics::count;
use crate::telemetry::{Arrival, Telemetry};
use topo_lb_core::cluster::{Change, Update};
use topo_lb_core::ejection::Silence;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::stale_write_gate::StaleWriteGate;
use topo_lb_kube::source::Event;
use topo_lb_kube::source::object::Kind;
use topo_lb_kube::source::saved::Saver;

/// The agent's state, and the parts that follow its changes.
pub struct AgentState {
    /// The cluster's objects, and the plans for them.
    pub reconciler: Reconciler,
    /// Tracks freshness and holds back writes from an old state.
    pub write_gate: StaleWriteGate,
    /// Whether the API server has been silent for too long.
    pub silence: Silence,
    /// Saves the state for the next start.
    pub saver: Saver,
    /// Logs, metrics and other reports.
    pub telemetry: Telemetry,
}

impl AgentState {
    /// Whether another plan is due at once: the last one left changes to it, and writes are not held back.
    pub(crate) fn has_more_to_write(&self) -> bool {
        self.write_gate.may_write() && !self.reconciler.settled()
    }

    /// An empty state.
    #[must_use]
    pub fn new(reconciler: Reconciler, saver: Saver, telemetry: Telemetry) -> Self {
        let silence = Silence::new(None, Instant::now());
        Self { reconciler, write_gate: StaleWriteGate::default(), silence, saver, telemetry }
    }

    /// Applies an event. Returns whether it was a listing of a whole kind, which takes much memory.
    pub fn take_in(&mut self, event: Event) -> bool {
        match event {
            Event::Update(update) => {
                let listed = matches!(
                    update,
                    Update::Node(Change::Listed(..))
                        | Update::Slice(Change::Listed(..))
                        | Update::Service(Change::Listed(..))
                );
                if matches!(update, Update::Node(_) | Update::Slice(_) | Update::Service(_)) {
                    self.silence.hear(Instant::now());
                }
                self.telemetry.listed(&update);
                let arrival = Arrival::of(&update);
                let is_change = self.reconciler.observe(update);
                self.telemetry.took_in(arrival, is_change);
                self.saver.changed();
                listed
            }
            Event::Freshness(freshness) => {
                self.write_gate.observe(freshness);
                self.silence.observe(freshness, Instant::now(), SystemTime::now());
                self.saver.observe(freshness);
                self.telemetry.fresh(freshness);
                false
            }
            // `app/exclusions.rs` handles these.
            Event::Synced | Event::Pods(_) | Event::Mended(_) => false,
            Event::Kept(kind, is_so) => {
                let is_for_all = kind == Kind::ClusterTopologyPolicy;
                let policies = self.reconciler.state().policies();
                let kept = policies.filter(|it| it.id.namespace.is_empty() == is_for_all).count();
                let figure = &self.telemetry.figures.kept_policies[usize::from(is_for_all)];
                figure.store(if is_so { kept as u64 } else { 0 }, Relaxed);
                false
            }
            Event::Trouble(sentence) | Event::Unserved(sentence) => {
                warn!("{sentence}");
                count(&self.telemetry.figures.troubles);
                false
            }
        }
    }
}

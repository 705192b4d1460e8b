//! Counts TCP connections that topo-lb does not translate, when they end (`--count all`).

use std::future::pending;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use crate::metrics::Figures;
use topo_lb_core::flag::COUNT;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_kernel::datapath::Datapath;
use topo_lb_kernel::datapath::maps::ended::EndedConnection;
use topo_lb_kernel::datapath::maps::ring::Ring;
use topo_lb_kernel::observe::{KnownAddresses, Query};

/// Pause between two looks at the ring buffer, however often it is half full: attributing what it has may take a pass
/// over all Services.
const PAUSE: Duration = Duration::from_millis(50);
/// How often Services that are gone are forgotten.
const FORGET: Duration = Duration::from_secs(60);

/// The ring buffer, and what is counted.
pub(super) struct Counting {
    ring: Ring<EndedConnection>,
    query: Query,
    known: KnownAddresses,
    /// The Pods' addresses, as far as they are known.
    pods: Vec<IpNet>,
    figures: Arc<Figures>,
    /// When to look again.
    next: Instant,
    forgotten: Instant,
}

impl Counting {
    /// Starts to count; `None` if the agent is not to, or the kernel tells nothing. `uncounted`: why connections are
    /// not accounted at all.
    pub(super) fn start(
        datapath: &mut Datapath,
        is_wanted: bool,
        uncounted: Option<&str>,
        pods: Vec<IpNet>,
        figures: &Arc<Figures>,
    ) -> Option<Self> {
        if !is_wanted {
            return None;
        }
        let ring = match uncounted {
            Some(error) => Err(error.to_owned()),
            None => datapath.ended(),
        };
        match ring {
            Ok(ring) => {
                info!(
                    "what TCP connections move that topo-lb does not translate is counted when they end"
                );
                let _ = figures.untranslated.set(<_>::default());
                let (figures, now) = (Arc::clone(figures), Instant::now());
                let (query, known) = (Query::default(), KnownAddresses::default());
                Some(Self { ring, query, known, pods, figures, next: now, forgotten: now })
            }
            Err(error) => {
                warn!(
                    "only connections that topo-lb translates are counted, in spite of {COUNT} all: {error}"
                );
                None
            }
        }
    }

    /// Waits until the ring buffer is half full. Nothing is lost if the caller stops to wait.
    pub(super) async fn next(counting: &mut Option<Self>) -> Vec<EndedConnection> {
        let Some(counting) = counting else { return pending().await };
        sleep_until(counting.next).await;
        match counting.ring.next().await {
            Ok(ended) => ended,
            Err(error) => {
                warn!(
                    "the ring buffer of ended connections cannot be polled: {error}; it is read once a second"
                );
                counting.next += Duration::from_secs(3_600);
                Vec::new()
            }
        }
    }

    /// Counts what the ring buffer has, after what was taken from it.
    pub(super) fn look(&mut self, reconciler: &Reconciler, mut ended: Vec<EndedConnection>) {
        ended.extend(self.ring.take());
        let now = Instant::now();
        self.next = self.next.max(now + PAUSE);
        let Some(untranslated) = self.figures.untranslated.get() else { return };
        let (state, node) = (reconciler.state(), reconciler.node());
        let mut untranslated = untranslated.lock().unwrap_or_else(PoisonError::into_inner);
        if !ended.is_empty() {
            let Self { known, query, pods, .. } = self;
            untranslated.count(known, (state, node), pods, &ended, |left| query.endpoints(left));
        }
        if now.duration_since(self.forgotten) > FORGET {
            self.forgotten = now;
            untranslated.keep(state);
        }
    }
}

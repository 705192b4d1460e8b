//! Has open connections counted that lead to a wider tier than the one in force: what `topo-lb.io/return` would bring
//! home.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use topo_lb_core::cluster::ServiceId;
use topo_lb_core::homecoming::Way;
use topo_lb_core::reconcile::Reconciler;
use topo_lb_kernel::datapath::maps::counters;
use topo_lb_kernel::socket::terminator::SocketTerminator;

use crate::metrics::services::parts;

/// How often they are counted.
const EVERY: Duration = Duration::from_mins(1);
/// How long Services are decided at once, so that nothing else of the agent task waits for long.
const TURN: Duration = Duration::from_millis(2);

/// The Service ports that had connections, and where those lead now; one portion of Services after the other.
#[derive(Debug, Default)]
pub(super) struct Wider {
    began: Option<Instant>,
    /// Service ports by Service, yet to be decided.
    left: BTreeMap<ServiceId, BTreeSet<Arc<str>>>,
    ways: Vec<Way>,
}

impl Wider {
    /// Decides a portion; with the last one, `terminator` counts. To be called once a second.
    pub(super) fn look(
        &mut self,
        reconciler: &Reconciler,
        maps: &Path,
        terminator: &mut SocketTerminator,
    ) {
        if self.left.is_empty() {
            if self.began.is_some_and(|began| began.elapsed() < EVERY) {
                return;
            }
            self.began = Some(Instant::now());
            // What cannot be read now is read in a minute.
            for name in counters::connections(maps).unwrap_or_default().into_keys() {
                let [namespace, service, _] = parts(&name);
                let id = ServiceId { namespace: namespace.into(), name: service.into() };
                self.left.entry(id).or_default().insert(name);
            }
        }
        let turn = Instant::now();
        while turn.elapsed() < TURN
            && let Some((id, ports)) = self.left.pop_first()
        {
            let ways = reconciler.ways(&id).into_iter();
            self.ways.extend(ways.filter(|way| ports.contains(&way.name)));
        }
        if self.left.is_empty() {
            terminator.count(std::mem::take(&mut self.ways));
        }
    }
}

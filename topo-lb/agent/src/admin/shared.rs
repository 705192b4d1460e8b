//! What the handlers share: where answers come from, what scrapes keep, and a plain answer.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::body::Bytes;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use tokio::sync::{Semaphore, watch};
use topo_lb_core::refusal::Refusal;
use topo_lb_core::topology::Scope;
use topo_lb_kernel::datapath::attach::mode::observes;
use topo_lb_kernel::datapath::maps::far_endpoints;
use topo_lb_kernel::observe::Observed;

use crate::metrics::Figures;
use crate::metrics::bounded::{Bounded, Counts};
use crate::metrics::refusals::Refusals;
use crate::metrics::zones::{Zones, named};
use crate::readiness::Readiness;
use crate::state_query::StateQueryHandle;

/// What answers are computed from.
#[derive(Debug)]
pub struct Sources {
    /// This node.
    pub node: Arc<str>,
    /// Which Services are handled.
    pub scope: Scope,
    /// The folder of the pinned maps.
    pub pin_dir: PathBuf,
    /// What the agent counts.
    pub figures: Arc<Figures>,
    /// What happens to connections while the agent only observes; `None` if it translates.
    pub observed: Option<Arc<Observed>>,
    /// The agent's readiness.
    pub readiness: watch::Receiver<Readiness>,
    /// Sends queries to the agent task.
    pub state_query: StateQueryHandle,
}

/// The sources, and what handlers share.
pub(super) struct Admin {
    pub(super) sources: Sources,
    /// What scrapes keep; locked by one scrape at a time.
    pub(super) remembered: Arc<Mutex<Remembered>>,
    /// When the last scrape began, and its text.
    pub(super) scraped: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
    /// Permits one long answer that holds the state.
    pub(super) long: Arc<Semaphore>,
}

impl Admin {
    pub(super) fn new(sources: Sources, metrics_services: usize) -> Self {
        Self {
            remembered: Arc::new(Mutex::new(Remembered::at_start(
                &sources.pin_dir,
                metrics_services,
                sources.observed.is_some(),
            ))),
            sources,
            scraped: tokio::sync::Mutex::default(),
            long: Arc::new(Semaphore::new(1)),
        }
    }
}

/// State that scrapes keep from one to the next.
#[derive(Debug, Default)]
pub(super) struct Remembered {
    pub(super) refusals: Refusals,
    pub(super) bounded: Bounded,
    pub(super) reasons: BTreeMap<Arc<str>, Refusal>,
    pub(super) zones: Zones,
    /// This node's zone, as the last scrape that could ask for it has found it.
    pub(super) own_zone: Arc<str>,
}

impl Remembered {
    /// At the agent's start.
    fn at_start(pin_dir: &Path, metrics_services: usize, observe: bool) -> Self {
        // What cannot be read now counts as new at the first scrape.
        let mut before = Counts::read(pin_dir).unwrap_or_default();
        if observes(pin_dir) != observe {
            // After a change of mode they begin at zero, see `Datapath::mark_mode`.
            before.connections.clear();
        }
        Self {
            bounded: Bounded::since(before, metrics_services),
            zones: Zones::since(far_endpoints::read(pin_dir).unwrap_or_default()),
            own_zone: named(None).into(),
            ..Self::default()
        }
    }
}

/// One sentence, as text.
pub(super) fn plain(status: StatusCode, sentence: String) -> Response {
    (status, format!("{}\n", sentence.trim_end())).into_response()
}

//! Figures of direct return: which other nodes are proved.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError};

use super::families::Families;
use topo_lb_core::cluster::Family;
use topo_lb_core::metrics::declared;
use topo_lb_core::peers::prover::Ignored;
use topo_lb_core::peers::status::{PeerState, Status};

/// What the agent knows of other nodes.
#[derive(Debug, Default)]
pub struct PeerFigures {
    /// Frames that meant nothing, in the order of `Ignored::ALL`.
    pub ignored: [AtomicU64; Ignored::ALL.len()],
    nodes: Mutex<Option<Vec<Status>>>,
}

impl PeerFigures {
    /// Replaces what is known.
    pub fn set(&self, nodes: Vec<Status>) {
        *self.nodes.lock().unwrap_or_else(PoisonError::into_inner) = Some(nodes);
    }

    /// What is known; `None` without direct return.
    #[must_use]
    pub fn nodes(&self) -> Option<Vec<Status>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// To how many of the other nodes packets of clients outside are sent on, in a sentence; `None` without direct return.
    #[must_use]
    pub fn sentence(&self) -> Option<String> {
        let all = self.nodes()?;
        let mut nodes = BTreeMap::<&str, bool>::new();
        for status in &all {
            *nodes.entry(&status.node).or_insert(true) &= status.state == PeerState::Proved;
        }
        let proved = nodes.values().filter(|proved| **proved).count();
        Some(match (proved, nodes.len()) {
            (_, 0) => "no other node has endpoints of Services with direct return".to_owned(),
            (proved, all) if proved == all => {
                format!("packets of clients outside are sent on to all {all} nodes with endpoints")
            }
            (proved, all) => format!(
                "packets of clients outside are sent on to {proved} of {all} nodes with endpoints; `topo-lb list peers` \
                 says why not to the others"
            ),
        })
    }
}

pub(super) fn encode(figures: &PeerFigures, families: &mut Families<'_, '_>) -> fmt::Result {
    let Some(nodes) = figures.nodes() else { return Ok(()) };
    let mut family = families.begin(&declared::DIRECT_RETURN_NODES)?;
    for version in Family::BOTH {
        for state in PeerState::OF_AGENT {
            let is_so = |it: &&Status| it.family == version && it.state == state;
            family.sample(
                &[version.into(), state.into()],
                nodes.iter().filter(is_so).count() as u64,
            )?;
        }
    }
    let reasons = Ignored::ALL.map(<&str>::from).into_iter();
    families.by(&declared::DIRECT_RETURN_IGNORED, reasons.zip(&figures.ignored))
}

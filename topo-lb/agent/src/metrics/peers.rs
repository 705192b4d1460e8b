//! Figures of direct return: which other nodes are proved.

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
        let counted = Family::BOTH.map(|family| {
            let of = |it: &&Status| it.family == family;
            let proved = |it: &&Status| of(it) && it.state == PeerState::Proved;
            (all.iter().filter(proved).count(), all.iter().filter(of).count())
        });
        let more = "; `topo-lb list peers` says why not to the others";
        let more = if counted.iter().any(|(proved, all)| proved < all) { more } else { "" };
        let to = |family: Family, (proved, all): (usize, usize)| {
            format!("{proved} of {all} nodes by {}", <&str>::from(family))
        };
        Some(match counted {
            [(_, 0), (_, 0)] => {
                "no other node has endpoints of Services with direct return".to_owned()
            }
            [four, six] => {
                let known = [(Family::V4, four), (Family::V6, six)];
                let known = known.into_iter().filter(|(_, (_, all))| *all > 0);
                let each: Vec<_> = known.map(|(family, counts)| to(family, counts)).collect();
                format!("packets of clients outside are sent on to {}{more}", each.join(", to "))
            }
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

//! Which Nodes the source must watch, and what is logged about it.

use tokio::sync::watch;
use tracing::{debug, info};

use crate::cluster::KnownNodes;
use crate::reconcile::Reconciler;

/// Which Nodes the source is to tell of: at first this node's own.
#[derive(Debug)]
pub(super) struct WantedNodes {
    sender: watch::Sender<KnownNodes>,
    told: Told,
}

/// What people know. Pure.
#[derive(Debug, Default)]
struct Told {
    /// That all Nodes are wanted.
    all: bool,
    /// All of them were known since.
    were_known: bool,
}

impl Told {
    /// Takes in what is wanted, and which Nodes are known. Whether it is to be said that all are wanted:
    /// once, until only one of them is watched again. A Service that changes a hundred times a second
    /// must not fill the log.
    fn observe(&mut self, wanted: KnownNodes, known: KnownNodes) -> bool {
        match known {
            KnownNodes::All => self.were_known = true,
            KnownNodes::Own if self.were_known => *self = Self::default(),
            KnownNodes::Own => {}
        }
        wanted == KnownNodes::All && !std::mem::replace(&mut self.all, true)
    }
}

impl Default for WantedNodes {
    fn default() -> Self {
        Self { sender: watch::Sender::new(KnownNodes::Own), told: Told::default() }
    }
}

impl WantedNodes {
    /// For the source.
    pub(super) fn subscribe(&self) -> watch::Receiver<KnownNodes> {
        self.sender.subscribe()
    }

    /// Wants these, whatever Services read.
    pub(super) fn begin_with(&mut self, nodes: KnownNodes) {
        self.sender.send_replace(nodes);
    }

    /// Has the source tell of other Nodes while some Service reads their labels; what is wanted now.
    pub(super) fn want(&mut self, reconciler: &Reconciler) -> KnownNodes {
        let reads = reconciler.reads_other_nodes();
        let nodes = if reads.is_some() { KnownNodes::All } else { KnownNodes::Own };
        let changed =
            self.sender.send_if_modified(|before| std::mem::replace(before, nodes) != nodes);
        let is_news = self.told.observe(nodes, reconciler.state().known_nodes());
        match reads {
            Some((service, label)) if is_news => info!(
                "watching all Nodes: Service {service} reads their label {label}, which its \
                 EndpointSlices do not carry"
            ),
            None if changed => debug!(
                "no Service reads labels of other Nodes any more: if that lasts, only the Node of \
                 this node is watched"
            ),
            _ => {}
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KnownNodes::{All, Own};

    #[test]
    fn a_service_that_comes_and_goes_is_told_of_once() {
        let mut told = Told::default();
        let mut said = 0;
        for _ in 0..100 {
            said += u32::from(told.observe(All, Own)) + u32::from(told.observe(Own, Own));
        }
        for _ in 0..100 {
            said += u32::from(told.observe(All, All)) + u32::from(told.observe(Own, All));
        }
        assert_eq!(said, 1);
        assert!(!told.observe(Own, Own));
        assert!(told.observe(All, Own), "the next time is news again");
    }
}

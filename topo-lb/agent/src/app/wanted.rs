//! Which Nodes the source must watch, and what is logged about it.

use tokio::sync::watch;
use tracing::{debug, info};

use topo_lb_core::cluster::{KnownNodes, ServiceId};
use topo_lb_core::reconcile::Reconciler;
use topo_lb_core::topology::counts_nodes;

/// Which Nodes the source must watch: at first only this node's own.
#[derive(Debug)]
pub(super) struct WantedNodes {
    sender: watch::Sender<KnownNodes>,
    log: AllNodesLog,
}

/// What was logged. Pure.
#[derive(Debug, Default)]
struct AllNodesLog {
    /// That all Nodes are watched.
    all: bool,
    /// Whether all Nodes were known since then.
    were_known: bool,
}

impl AllNodesLog {
    /// Takes in which Nodes are wanted and which are known. Returns whether to log that all are
    /// wanted: once, until only one Node is watched again. A Service that changes a hundred times a
    /// second must not fill the log.
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
        Self { sender: watch::Sender::new(KnownNodes::Own), log: AllNodesLog::default() }
    }
}

impl WantedNodes {
    pub(super) fn subscribe(&self) -> watch::Receiver<KnownNodes> {
        self.sender.subscribe()
    }

    /// Requests these Nodes, whatever Services read.
    pub(super) fn begin_with(&mut self, nodes: KnownNodes) {
        self.sender.send_replace(nodes);
    }

    /// Requests all Nodes while some Service reads their labels. Returns what is requested now.
    pub(super) fn want(&mut self, reconciler: &Reconciler) -> KnownNodes {
        let reads = reconciler.reads_other_nodes();
        let nodes = if reads.is_some() { KnownNodes::All } else { KnownNodes::Own };
        let changed =
            self.sender.send_if_modified(|before| std::mem::replace(before, nodes) != nodes);
        let is_news = self.log.observe(nodes, reconciler.state().known_nodes());
        match reads {
            Some((service, label)) if is_news => {
                info!("watching all Nodes: {}", reason(reconciler, service, label));
            }
            None if changed => debug!(
                "no Service reads labels of other Nodes any more: if that lasts, only the Node of \
                 this node is watched"
            ),
            _ => {}
        }
        nodes
    }
}

/// Why all Nodes are watched.
fn reason(reconciler: &Reconciler, service: &ServiceId, label: &str) -> String {
    if counts_nodes(reconciler.state(), reconciler.node(), service) {
        return format!("Service {service} counts those of each {label}, for its spill: auto");
    }
    format!("Service {service} reads their label {label}, which its EndpointSlices do not carry")
}

#[cfg(test)]
mod tests {
    use topo_lb_core::cluster::service::PolicySources;
    use topo_lb_core::cluster::{Change, Service, Update};
    use topo_lb_core::topology::Scope;

    use super::*;
    use KnownNodes::{All, Own};

    #[test]
    fn nodes_are_counted_or_their_labels_are_read() {
        let said = |spill: Option<&str>| {
            let mut reconciler = Reconciler::new("n1".into(), Scope::All, false);
            let policy = PolicySources {
                topology_keys: Some("zone,*".into()),
                spill: spill.map(Into::into),
                ..PolicySources::default()
            };
            let id = ServiceId { namespace: "default".into(), name: "web".into() };
            let service = Service { id: id.clone(), policy: policy.into(), ..Service::default() };
            reconciler.observe(Update::Service(Change::Applied(service)));
            reason(&reconciler, &id, "zone")
        };
        let reads =
            "Service default/web reads their label zone, which its EndpointSlices do not carry";
        assert_eq!([said(None), said(Some("5%"))], [reads, reads]);
        let counts = "Service default/web counts those of each zone, for its spill: auto";
        assert_eq!(said(Some("auto")), counts);
    }

    #[test]
    fn a_service_that_comes_and_goes_is_told_of_once() {
        let mut log = AllNodesLog::default();
        let mut said = 0;
        for _ in 0..100 {
            said += u32::from(log.observe(All, Own)) + u32::from(log.observe(Own, Own));
        }
        for _ in 0..100 {
            said += u32::from(log.observe(All, All)) + u32::from(log.observe(Own, All));
        }
        assert_eq!(said, 1);
        assert!(!log.observe(Own, Own));
        assert!(log.observe(All, Own), "the next time is news again");
    }
}

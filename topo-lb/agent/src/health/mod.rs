//! What load balancers ask a node, answered as by kube-proxy: whether connections should come to it, and
//! whether a Service with `externalTrafficPolicy: Local` has an endpoint there.
//!
//! | file | idea |
//! |---|---|
//! | `check` | the Services with a health check, and their endpoints on this node |
//! | `proxy` | whether this node forwards, and whether it is about to leave |
//! | `answers` | the answers |
//! | `servers` | the listeners |

mod answers;
mod check;
mod proxy;
mod servers;

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::watch;

use crate::events::publish::EventPublisher;
use crate::metrics::Figures;
use crate::readiness::Readiness;
use crate::serve::door::Rooms;
use crate::{serve::Listen, serve::descriptors, serve::run, serve::waiting};
pub use check::{Check, Wanted};
use proxy::Proxy;
use servers::{Common, Servers};
use topo_lb_core::cluster::{NodePortAddresses, ServiceId, State};

/// Where health checks are answered.
#[derive(Clone, Debug)]
pub struct Options {
    /// `/healthz` and `/livez`: kube-proxy's `--healthz-bind-address`.
    pub listen: Listen,
    /// The addresses at which Services' checks are answered: those of their node ports.
    pub node_ports: NodePortAddresses,
}

/// What answers are computed from.
#[derive(Debug)]
pub struct Sources {
    /// This node.
    pub node: Arc<str>,
    /// What the agent counts.
    pub figures: Arc<Figures>,
    /// The agent's readiness.
    pub readiness: watch::Receiver<Readiness>,
    /// Whether programs of an earlier agent forward until this one has filled the maps.
    pub forwards_before: bool,
    /// Whether this Node is about to leave.
    pub leaving: watch::Receiver<bool>,
    /// Sends Events about checks that cannot be answered.
    pub publisher: EventPublisher,
}

/// Follows which Services have a health check.
#[derive(Debug)]
pub struct Checks {
    node_ports: NodePortAddresses,
    wanted: watch::Sender<Wanted>,
}

/// Serves until the process ends, on a thread of its own.
///
/// # Errors
/// The thread cannot be created.
pub fn start(options: &Options, sources: Sources) -> std::io::Result<Checks> {
    // So many connections wait at all of these listeners together, and so many listeners are open.
    let most = waiting(descriptors());
    let rooms = Rooms::new(most);
    let (wanted, receiver) = watch::channel(Wanted::default());
    let (listen, node_ports) = (options.listen, options.node_ports.clone());
    let Sources { node, figures, readiness, forwards_before, leaving, publisher } = sources;
    let proxy = Proxy::new(
        Arc::clone(&figures),
        readiness.clone(),
        forwards_before,
        leaving,
        receiver.clone(),
    );
    let proxy = Arc::new(proxy);
    let common = Common { node, proxy: Arc::clone(&proxy), rooms, figures, publisher };
    run("health", async move {
        let node_itself = async {
            if let Listen::On(address) = listen {
                common.clone().serve_node(address).await;
            }
        };
        let services = Servers::new(common.clone(), most);
        tokio::join!(node_itself, services.follow(receiver), proxy.follow(readiness));
    })?;
    Ok(Checks { node_ports, wanted })
}

impl Checks {
    /// Takes in changed Services, after their changes are in the maps.
    pub fn look<'a>(
        &self,
        state: &State,
        node: &str,
        changed: impl Iterator<Item = &'a ServiceId>,
    ) {
        let addresses = match &self.node_ports {
            NodePortAddresses::All => vec![IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED)],
            some => some.select(state.local_addresses()),
        };
        self.wanted.send_if_modified(|wanted| wanted.look(state, node, changed, addresses));
    }
}

#[cfg(test)]
mod tests;

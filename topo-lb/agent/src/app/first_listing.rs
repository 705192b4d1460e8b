//! Waits until the whole cluster is listed, before the first plan.

use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use anyhow::bail;
use futures::StreamExt as _;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

use super::source::Events;
use super::wanted::WantedNodes;
use crate::agent_state::AgentState;
use topo_lb_core::cluster::Freshness;
use topo_lb_core::cluster::{KnownNodes, Update};
use topo_lb_kernel::datapath::attach::hooks;
use topo_lb_kube::source::Event;

/// A first listing that takes longer is logged.
pub(super) const UNREMARKED: Duration = Duration::from_secs(2);
/// How long to wait for other Nodes once all else is known. An agent that may not list them, or for
/// which that takes long, still serves all Services that do not need them. Shorter than the time
/// after which a closed watch makes the state old: an old state must not overwrite what the last
/// agent left.
const OTHER_NODES: Duration = Duration::from_secs(5);

/// What connections do until the cluster is known.
fn meanwhile(pin_dir: &Path) -> &'static str {
    if hooks::is_attached(pin_dir) {
        "connections go on by what the last agent left in the kernel"
    } else {
        "connections are untouched until then"
    }
}

/// Takes in the whole cluster before the first plan: an incomplete one would refuse connections
/// that the complete one allows.
pub(super) async fn first_listing(
    events: &mut Events,
    agent: &mut AgentState,
    wanted: &mut WantedNodes,
    pin_dir: &Path,
) -> anyhow::Result<()> {
    let node = agent.reconciler.node().to_owned();
    let mut listing = pin!(until_complete(events, agent, wanted));
    match timeout(UNREMARKED, &mut listing).await {
        Ok(listed) => listed,
        Err(_) => {
            info!(node, "still waiting for all of the cluster; {}", meanwhile(pin_dir));
            listing.await
        }
    }
}

async fn until_complete(
    events: &mut Events,
    agent: &mut AgentState,
    wanted: &mut WantedNodes,
) -> anyhow::Result<()> {
    let mut synced = false;
    // Deadline for other Nodes.
    let mut until = None;
    loop {
        let event = match until {
            None => events.next().await,
            Some(until) => match timeout_at(until, events.next()).await {
                Ok(event) => event,
                Err(_) => {
                    warn!(
                        "not all Nodes were listed within {} s: Services that read their labels \
                         stay as they are until then",
                        OTHER_NODES.as_secs()
                    );
                    return Ok(());
                }
            },
        };
        let Some(event) = event else {
            bail!("the source of the cluster's state ended before it was complete")
        };
        synced |= matches!(event, Event::Synced);
        let said_which_nodes = matches!(event, Event::Update(Update::KnownNodes(_)));
        let said_synced = matches!(event, Event::Synced);
        agent.take_in(event);
        if synced && (said_synced || said_which_nodes) {
            if has_its_nodes(agent, wanted) {
                return Ok(());
            }
            // The agent does not start without its own Node.
            let reconciler = &agent.reconciler;
            let is_known = reconciler.state().node(reconciler.node()).is_some();
            until = until.or_else(|| is_known.then(|| Instant::now() + OTHER_NODES));
        }
    }
}

/// Whether all Nodes are known that the first plan reads. If not, requests them.
fn has_its_nodes(agent: &mut AgentState, wanted: &mut WantedNodes) -> bool {
    let reconciler = &mut agent.reconciler;
    let is_saved = matches!(agent.write_gate.freshness(), Freshness::AsOf(_));
    if is_saved || reconciler.state().known_nodes() == KnownNodes::All {
        return true;
    }
    reconciler.survey();
    if reconciler.state().node(reconciler.node()).is_none() {
        // The error message names the existing Nodes.
        wanted.begin_with(KnownNodes::All);
        return false;
    }
    wanted.want(reconciler) == KnownNodes::Own
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::stream;

    use super::*;
    use crate::events::publish::EventPublisher;
    use crate::telemetry::Telemetry;
    use topo_lb_core::reconcile::Reconciler;
    use topo_lb_core::topology::Scope;
    use topo_lb_kube::source::file::example;
    use topo_lb_kube::source::saved::Saver;

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_may_not_list_other_nodes_begins_without_them() {
        let own = Update::KnownNodes(KnownNodes::Own);
        let updates = [own].into_iter().chain(example::updates(example::CLUSTER));
        let all: Vec<_> = updates.map(Event::Update).chain([Event::Synced]).collect();
        let mut events: Events = Box::pin(stream::iter(all).chain(stream::pending()));
        let figures = Arc::default();
        let telemetry = Telemetry::new(Arc::clone(&figures), EventPublisher::silent(figures));
        let reconciler = Reconciler::new("here".into(), Scope::All, false);
        let mut agent = AgentState::new(reconciler, Saver::new(None), telemetry);
        let mut wanted = WantedNodes::default();
        let begun = Instant::now();
        let complete = until_complete(&mut events, &mut agent, &mut wanted);
        timeout(OTHER_NODES * 10, complete).await.expect("it waits for ever").unwrap();
        assert!(begun.elapsed() >= OTHER_NODES, "it waits for a while");
        assert_eq!(agent.reconciler.reads_other_nodes().map(|(_, label)| label), Some("rack"));
    }
}

//! Gathers events that arrive together into one plan.

use std::time::Duration;

use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, timeout_at};

use crate::agent_state::AgentState;
use topo_lb_kube::source::Event;

/// Most events in one plan: a flood of them becomes few writes.
const BATCH: usize = 1024;
/// How long events are gathered into one plan. Changes that belong together, as of one manifest or
/// of a Service and its slices, take effect together.
const GATHER: Duration = Duration::from_millis(1);

/// Takes in an event and those right after it. Returns whether all objects of a kind were listed.
pub(super) async fn gather(
    event: Event,
    events: &mut (impl Stream<Item = Event> + Unpin),
    agent: &mut AgentState,
) -> bool {
    let mut listed = agent.take_in(event);
    let together = Instant::now() + GATHER;
    for _ in 1..BATCH {
        match timeout_at(together, events.next()).await {
            Ok(Some(event)) => listed |= agent.take_in(event),
            _ => break,
        }
    }
    listed
}

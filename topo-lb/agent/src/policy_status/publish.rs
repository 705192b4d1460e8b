//! Writes the statuses. Every agent knows them all, and none is elected: each waits for a time of its own,
//! and writes what the API server does not have by then. What one writes, all the others see by their watches.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tracing::{debug, warn};

use super::statuses;
use crate::state_query::StateQueryHandle;
use topo_lb_core::cluster::PolicyId;
use topo_lb_core::once::Once;
use topo_lb_kube::crd::{ClusterTopologyPolicy, PolicyStatus, TopologyPolicy};
use topo_lb_kube::source::kube::{KubeTarget, connect};

/// How often the statuses are compared.
const INTERVAL: Duration = Duration::from_secs(5);
/// An agent waits for less than this before it writes: in a cluster of many nodes the first one writes soon.
const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Follows the agent's state in a task.
pub fn start(target: KubeTarget, node: Arc<str>, state_query: StateQueryHandle) {
    tokio::spawn(async move {
        let mut writer = Writer { target, client: None };
        let (mut computed, mut waiting) = ((None, BTreeMap::new()), Waiting::default());
        let mut failing = Once::new();
        loop {
            tokio::time::sleep(INTERVAL).await;
            let Ok(view) = state_query.view().await else { continue };
            let revision = Some(view.state.revision());
            if computed.0 != revision {
                let state = Arc::clone(&view.state);
                let all = tokio::task::spawn_blocking(move || statuses(&state)).await;
                computed = (revision, all.unwrap_or_default());
            }
            let reported = view.state.policies().map(|it| (&it.id, it.reported.0.as_deref()));
            let due = waiting.due(reported, &computed.1, &node, Instant::now());
            let due: Vec<_> = due.into_iter().map(|(id, it)| (id.clone(), it.clone())).collect();
            drop(view);
            for (id, status) in due {
                match writer.write(&id, &status).await {
                    Ok(()) => failing.clear(),
                    Err(reason) if failing.begins(()) => {
                        warn!("the status of {id} cannot be written: {reason}");
                    }
                    Err(reason) => debug!("the status of {id} cannot be written: {reason}"),
                }
            }
        }
    });
}

/// Since when statuses differ from those that the API server has.
#[derive(Default)]
struct Waiting(BTreeMap<PolicyId, Instant>);

impl Waiting {
    /// The statuses that this node should write now.
    fn due<'a>(
        &mut self,
        reported: impl Iterator<Item = (&'a PolicyId, Option<&'a PolicyStatus>)>,
        computed: &'a BTreeMap<PolicyId, PolicyStatus>,
        node: &str,
        now: Instant,
    ) -> Vec<(&'a PolicyId, &'a PolicyStatus)> {
        let differ: BTreeMap<_, _> = reported
            .filter_map(|(id, reported)| Some((id, reported, computed.get(id)?)))
            .filter(|(_, reported, status)| *reported != Some(*status))
            .map(|(id, _, status)| (id, status))
            .collect();
        self.0.retain(|id, _| differ.contains_key(id));
        let mut due = Vec::new();
        for (id, status) in differ {
            let since = *self.0.entry(id.clone()).or_insert(now);
            if now >= since + wait(node, id) {
                due.push((id, status));
                // Written once, unless it is not seen for as long again.
                self.0.insert(id.clone(), now);
            }
        }
        due
    }
}

/// How long a node waits for others to write the status of a policy.
fn wait(node: &str, id: &PolicyId) -> Duration {
    let mut hasher = DefaultHasher::new();
    (node, id).hash(&mut hasher);
    LONGEST_WAIT * u32::from(u8::try_from(hasher.finish() >> 56).unwrap_or_default()) / 256
}

struct Writer {
    target: KubeTarget,
    client: Option<Client>,
}

impl Writer {
    async fn write(&mut self, id: &PolicyId, status: &PolicyStatus) -> Result<(), String> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let server = connect(&self.target).await.map_err(|error| error.to_string())?;
                self.client.insert(server.client()).clone()
            }
        };
        let (params, patch) = (PatchParams::default(), json!({"status": status}));
        let patch = Patch::Merge(&patch);
        let written = if id.is_of_cluster() {
            let api = Api::<ClusterTopologyPolicy>::all(client);
            api.patch_status(&id.name, &params, &patch).await.map(drop)
        } else {
            let api = Api::<TopologyPolicy>::namespaced(client, &id.namespace);
            api.patch_status(&id.name, &params, &patch).await.map(drop)
        };
        match written {
            // It was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            written => written.map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_written_once_after_a_wait_that_differs_by_node_and_not_if_another_wrote_it() {
        let id = PolicyId { namespace: "".into(), name: "all".into() };
        let status = PolicyStatus { services: 3, ..PolicyStatus::default() };
        let computed = BTreeMap::from([(id.clone(), status.clone())]);
        let start = Instant::now();
        let nodes: Vec<_> = (0..100).map(|number| format!("n{number}")).collect();
        let mut waits: Vec<_> = nodes.iter().map(|node| wait(node, &id)).collect();
        waits.sort_unstable();
        assert!(waits[0] < LONGEST_WAIT / 20 && waits[99] < LONGEST_WAIT, "{waits:?}");
        assert!(waits[99] > LONGEST_WAIT * 9 / 10, "{waits:?}");
        let mut waiting = Waiting::default();
        let own = wait("n1", &id);
        let mut look = |reported: Option<&PolicyStatus>, after: Duration| {
            let reported = [(&id, reported)].into_iter();
            waiting.due(reported, &computed, "n1", start + after).len()
        };
        assert_eq!(look(None, Duration::ZERO), usize::from(own.is_zero()));
        assert_eq!(look(None, own), 1);
        assert_eq!(look(None, own + own / 2), 0, "the watch may be late");
        assert_eq!(look(None, 2 * own), 1);
        assert_eq!(look(Some(&status), 4 * own), 0);
        // It differs again: the wait begins anew.
        assert_eq!(look(None, 5 * own), 0);
        assert_eq!(look(None, 6 * own), 1);
    }
}

//! Sends Events at the Node where a person must act: foreign programs run before topo-lb's, the host keeps
//! connections of clients outside from passing, their table or a client's share of it is full, or no program
//! serves them where they come. And where a person should know: the node was an island.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::object::{series, warning};
use crate::metrics::{Figures, count};
use crate::readiness::Readiness;
use topo_lb_core::once::Once;
use topo_lb_kube::source::kube::{KubeTarget, connect};

/// What an Event is about.
#[derive(Clone, Copy)]
struct Concern {
    reason: &'static str,
    action: &'static str,
    /// Its sentence, while it lasts.
    of: fn(&Readiness) -> Option<&String>,
}

const CONCERNS: [Concern; 6] = [
    Concern {
        reason: "ConnectionsOverridden",
        action: "Attach",
        of: |readiness| readiness.overridden.as_ref(),
    },
    Concern {
        reason: "ConnectionsFromOutsideFail",
        action: "Forward",
        of: |readiness| readiness.outside.as_ref(),
    },
    Concern {
        reason: "ConnectionTableFull",
        action: "Connect",
        of: |readiness| readiness.full.as_ref(),
    },
    Concern {
        reason: "ConnectionShareUsed",
        action: "Connect",
        of: |readiness| readiness.used_up.as_ref(),
    },
    Concern {
        reason: "ClientsOutsideNotServed",
        action: "Attach",
        of: |readiness| readiness.unserved.as_ref(),
    },
    Concern {
        reason: "NodeWasIsland",
        action: "Probe",
        of: |readiness| readiness.was_island.as_ref(),
    },
];
/// The namespace of Events about Nodes.
const NAMESPACE: &str = "default";
/// The same sentence within this time counts as a repetition of the same Event.
const SAME_SERIES: Duration = Duration::from_secs(360);
/// Pause after each Event, sent or failed: foreign programs that come and go cause no storm.
const PAUSE: Duration = Duration::from_secs(30);

/// Follows the agent's readiness in tasks, and sends one Event each time that a concern begins.
pub fn start(
    target: KubeTarget,
    node: Arc<str>,
    readiness: watch::Receiver<Readiness>,
    figures: Arc<Figures>,
) {
    for concern in CONCERNS {
        let (target, node) = (target.clone(), Arc::clone(&node));
        let mut recorder = Recorder { target, node, concern, client: None, last: None };
        let (readiness, figures) = (readiness.clone(), Arc::clone(&figures));
        tokio::spawn(follow(concern, readiness, figures, async move |sentence: &str| {
            recorder.tell(sentence).await
        }));
    }
}

async fn follow(
    concern: Concern,
    mut readiness: watch::Receiver<Readiness>,
    figures: Arc<Figures>,
    mut tell: impl AsyncFnMut(&str) -> Result<(), String>,
) {
    let mut failing = Once::new();
    loop {
        let Some(sentence) = next(concern, &mut readiness).await else { return };
        match tell(&sentence).await {
            Ok(()) => {
                count(&figures.events_sent);
                failing.clear();
                if readiness.wait_for(|readiness| (concern.of)(readiness).is_none()).await.is_err()
                {
                    return;
                }
            }
            Err(reason) => {
                count(&figures.events_failed);
                if failing.begins(()) {
                    warn!("the Event {} of this Node cannot be told: {reason}", concern.reason);
                } else {
                    debug!("the Event {} of this Node cannot be told: {reason}", concern.reason);
                }
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits for something to report; `None` when the agent ends.
async fn next(concern: Concern, readiness: &mut watch::Receiver<Readiness>) -> Option<String> {
    let lasts = readiness.wait_for(|readiness| (concern.of)(readiness).is_some());
    (concern.of)(&*lasts.await.ok()?).cloned()
}

struct Recorder {
    target: KubeTarget,
    node: Arc<str>,
    concern: Concern,
    client: Option<Client>,
    last: Option<Last>,
}

struct Last {
    name: String,
    sentence: String,
    when: SystemTime,
    times: u32,
}

impl Recorder {
    /// Sends an Event, or counts a repetition of the last one.
    async fn tell(&mut self, sentence: &str) -> Result<(), String> {
        let client = match &self.client {
            Some(client) => client.clone(),
            None => {
                let server = connect(&self.target).await.map_err(|error| error.to_string())?;
                self.client.insert(server.client()).clone()
            }
        };
        let api = Api::<Event>::namespaced(client, NAMESPACE);
        let now = SystemTime::now();
        let age = |last: &Last| now.duration_since(last.when).unwrap_or_default();
        let last = self.last.take();
        if let Some(mut last) =
            last.filter(|last| last.sentence == sentence && age(last) < SAME_SERIES)
        {
            (last.times, last.when) = (last.times.saturating_add(1), now);
            let patch = json!({"series": series(now, last.times)});
            let params = PatchParams::default();
            match api.patch(&last.name, &params, &Patch::Merge(&patch)).await {
                // The Event has expired: create a new one.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                result => {
                    self.last = Some(last);
                    return result.map(drop).map_err(|error| error.to_string());
                }
            }
        }
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let name = format!("{}.topo-lb-{:x}", self.node, since.as_micros());
        let event = Event {
            reason: Some(self.concern.reason.to_owned()),
            action: Some(self.concern.action.to_owned()),
            ..warning(&self.node, &name, reference(&self.node), sentence, now)
        };
        let created = api.create(&PostParams::default(), &event).await;
        created.map_err(|error| error.to_string())?;
        self.last = Some(Last { name, sentence: sentence.to_owned(), when: now, times: 1 });
        Ok(())
    }
}

/// The Node as the kubelet's Events refer to it, with its name as the UID: `kubectl describe node`
/// finds Events by that.
fn reference(node: &Arc<str>) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_string()),
        // The API server accepts Events about objects without a namespace only here.
        namespace: Some(NAMESPACE.to_owned()),
        uid: Some(node.to_string()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use tokio::time::sleep;

    use super::*;

    /// Follows a readiness that the test sets, and lists the Events. `refuses` gets their number.
    fn followed(
        refuses: impl Fn(usize) -> bool + Send + Sync + 'static,
    ) -> (watch::Sender<Readiness>, Arc<Mutex<Vec<String>>>) {
        let (readiness, receiver) = watch::channel(Readiness::default());
        let told = Arc::<Mutex<Vec<String>>>::default();
        let list = Arc::clone(&told);
        tokio::spawn(follow(CONCERNS[0], receiver, Arc::default(), async move |sentence: &str| {
            let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
            list.push(sentence.to_owned());
            if refuses(list.len()) { Err("not now".to_owned()) } else { Ok(()) }
        }));
        (readiness, told)
    }

    fn set(readiness: &watch::Sender<Readiness>, sentence: Option<&str>) {
        let sentence = sentence.map(str::to_owned);
        readiness.send_modify(|readiness| readiness.overridden = sentence);
    }

    #[tokio::test(start_paused = true)]
    async fn programs_before_ours_are_told_once_while_they_last() {
        let (readiness, told) = followed(|_| false);
        set(&readiness, Some("one"));
        sleep(PAUSE * 10).await;
        set(&readiness, Some("one and another"));
        sleep(PAUSE * 10).await;
        assert_eq!(*told.lock().unwrap(), ["one"]);
        set(&readiness, None);
        sleep(PAUSE * 2).await;
        set(&readiness, Some("one again"));
        sleep(PAUSE).await;
        assert_eq!(*told.lock().unwrap(), ["one", "one again"]);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_that_was_refused_is_told_again_after_a_pause() {
        let (readiness, told) = followed(|times| times < 3);
        set(&readiness, Some("one"));
        sleep(PAUSE / 2).await;
        assert_eq!(told.lock().unwrap().len(), 1);
        sleep(PAUSE * 10).await;
        assert_eq!(*told.lock().unwrap(), ["one"; 3]);
    }
}

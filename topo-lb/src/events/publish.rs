//! Brings news to the API server, as `events.k8s.io/v1`. It has nothing to say to the owner of the
//! state: what cannot be told in time is counted and forgotten.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ObjectReference, Service};
use kube::api::{ListParams, PartialObjectMeta};
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::concern::News;
use super::rate::Rate;
use crate::metrics::{Figures, count};
use crate::source::kube::{KubeTarget, connect};

/// News that may wait to be told.
const WAITING: usize = 64;
/// What client-go lets pass at once, of one source.
const BURST: u32 = 25;
/// And then one in each: a cluster of a thousand nodes bears it.
const INTERVAL: Duration = Duration::from_secs(10);
/// The API server takes notes of up to 1 KiB.
const LONGEST_NOTE: usize = 1024;
/// Who reports.
const CONTROLLER: &str = "topo-lb";

/// Takes news, and never waits.
#[derive(Clone, Debug)]
pub struct Teller {
    /// None where there is nobody to tell.
    sender: Option<mpsc::Sender<News>>,
    figures: Arc<Figures>,
}

impl Teller {
    /// One that tells nobody.
    #[must_use]
    pub fn silent(figures: Arc<Figures>) -> Self {
        Self { sender: None, figures }
    }

    /// One that tells the API server from now on, in a task of its own. It connects when there is
    /// something to tell.
    #[must_use]
    pub fn start(target: KubeTarget, node: Arc<str>, figures: Arc<Figures>) -> Self {
        let (sender, news) = mpsc::channel(WAITING);
        tokio::spawn(tell_all(target, node, news, Arc::clone(&figures)));
        Self { sender: Some(sender), figures }
    }

    /// Tells news, unless too many wait.
    pub fn tell(&self, news: Vec<News>) {
        let Some(sender) = &self.sender else { return };
        for one in news {
            if sender.try_send(one).is_err() {
                count(&self.figures.events_dropped);
            }
        }
    }
}

async fn tell_all(
    target: KubeTarget,
    node: Arc<str>,
    mut all: mpsc::Receiver<News>,
    figures: Arc<Figures>,
) {
    let mut rate = Rate::new(BURST, INTERVAL, Instant::now());
    let mut teller = None;
    // One warning until it works again.
    let mut has_warned = false;
    while let Some(news) = all.recv().await {
        if !rate.take(Instant::now()) {
            count(&figures.events_dropped);
            continue;
        }
        let result = tell(&mut teller, &target, &node, &news).await;
        match result {
            Ok(true) => {
                count(&figures.events_sent);
                has_warned = false;
            }
            // The Service is gone by now.
            Ok(false) => count(&figures.events_dropped),
            Err(reason) => {
                count(&figures.events_failed);
                let topic = news.topic.reason();
                if std::mem::replace(&mut has_warned, true) {
                    debug!(service = %news.service, topic, "an Event cannot be told: {reason}");
                } else {
                    warn!("the Event {topic} of Service {} cannot be told: {reason}", news.service);
                }
            }
        }
    }
}

/// A connection, and who speaks.
struct Voice {
    client: Client,
    recorder: Recorder,
}

/// Whether there was somebody to tell it of.
async fn tell(
    voice: &mut Option<Voice>,
    target: &KubeTarget,
    node: &str,
    news: &News,
) -> Result<bool, String> {
    let voice = match voice {
        Some(voice) => voice,
        None => {
            let client = connect(target).await.map_err(|error| error.to_string())?.client();
            let reporter =
                Reporter { controller: CONTROLLER.to_owned(), instance: Some(node.to_owned()) };
            let recorder = Recorder::new(client.clone(), reporter);
            voice.insert(Voice { client, recorder })
        }
    };
    let Some(regarding) = reference(&voice.client, news).await? else { return Ok(false) };
    let event = Event {
        type_: EventType::Warning,
        reason: news.topic.reason().to_owned(),
        note: Some(note(node, &news.note)),
        action: news.topic.action().to_owned(),
        secondary: None,
    };
    voice.recorder.publish(&event, &regarding).await.map_err(|error| refused(&error, "create"))?;
    Ok(true)
}

/// The Service as Events refer to it. `kubectl describe` finds them by its UID, which nothing else
/// needs; it is listed, because that is what an agent may do already.
async fn reference(client: &Client, news: &News) -> Result<Option<ObjectReference>, String> {
    let namespace = &news.service.namespace;
    let api = Api::<Service>::namespaced(client.clone(), namespace);
    let params = ListParams::default().fields(&format!("metadata.name={}", news.service.name));
    let listed = api
        .list_metadata(&params)
        .await
        .map_err(|error| format!("the API server does not say which Service it is: {error}"))?;
    let found = listed.items.into_iter().next();
    Ok(found.map(|PartialObjectMeta { metadata, .. }| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(namespace.to_string()),
        name: metadata.name,
        uid: metadata.uid,
        ..ObjectReference::default()
    }))
}

fn refused(error: &kube::Error, verb: &str) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => format!(
            "the API server does not let this agent {verb} events.events.k8s.io ({}): allow the \
             verbs create and patch on events of the API group events.k8s.io to its ServiceAccount \
             or user; traffic does not depend on it",
            status.message.trim()
        ),
        error => error.to_string(),
    }
}

/// With the node before it, as every node tells its own.
fn note(node: &str, text: &str) -> String {
    let mut note = format!("on node {node}: {text}");
    if note.len() > LONGEST_NOTE {
        let end = (0..=LONGEST_NOTE - '…'.len_utf8()).rev().find(|end| note.is_char_boundary(*end));
        note.truncate(end.unwrap_or_default());
        note.push('…');
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_note_is_cut_where_a_character_ends() {
        let cut = note("n", &"ü".repeat(1000));
        assert!(cut.len() <= LONGEST_NOTE, "{} bytes", cut.len());
        assert!(cut.starts_with("on node n: ü") && cut.ends_with("ü…"), "{cut}");
        assert_eq!(note("n", "short"), "on node n: short");
    }
}

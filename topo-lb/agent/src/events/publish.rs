//! Sends news to the API server as `events.k8s.io/v1`. The agent task never waits for it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime};

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;
use tracing::{debug, warn};

use super::concern::News;
use super::object::{series, shortened, warning};
use super::outbox::{Message, Outbox};
use super::written::{Request, Written};
use crate::metrics::{Figures, count};
use topo_lb_core::once::Once;
use topo_lb_kube::source::kube::{KubeTarget, connect};

/// Batches of news that may wait for the task to queue them, which is quick.
const BATCHES: usize = 64;
/// Time limit of an API request; a timeout is retried later.
const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after a failure of the API server; doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Accepts news without blocking.
#[derive(Clone, Debug)]
pub struct EventPublisher {
    /// `None` without an API server.
    sender: Option<mpsc::Sender<Vec<News>>>,
    figures: Arc<Figures>,
}

impl EventPublisher {
    /// A publisher without an API server: drops all news.
    #[must_use]
    pub fn silent(figures: Arc<Figures>) -> Self {
        Self { sender: None, figures }
    }

    /// Starts a task that sends news to the API server. It connects for the first news.
    #[must_use]
    pub fn start(target: KubeTarget, node: Arc<str>, figures: Arc<Figures>) -> Self {
        let (sender, news) = mpsc::channel(BATCHES);
        let herald = Herald {
            target,
            node,
            figures: Arc::clone(&figures),
            outbox: Outbox::new(Instant::now()),
            written: Written::default(),
            client: None,
            rest: None,
            pause: FIRST_PAUSE,
            failing: Once::new(),
        };
        tokio::spawn(herald.tell_all(news));
        Self { sender: Some(sender), figures }
    }

    /// Queues news; drops and counts them if too many wait.
    pub fn tell(&self, news: Vec<News>) {
        let Some(sender) = &self.sender else { return };
        let many = news.len() as u64;
        if many > 0 && sender.try_send(news).is_err() {
            self.figures.events_dropped.fetch_add(many, Relaxed);
        }
    }
}

enum Answer {
    Done,
    /// Another agent created the same Event.
    Found,
    /// The Event, the Service or its namespace is gone.
    Gone,
}

struct Failure {
    reason: String,
    /// A retry may help.
    is_passing: bool,
}

struct Herald {
    target: KubeTarget,
    node: Arc<str>,
    figures: Arc<Figures>,
    outbox: Outbox,
    written: Written,
    client: Option<Client>,
    /// Earliest time of the next attempt.
    rest: Option<Instant>,
    pause: Duration,
    /// Failures after the first are logged at debug level, until a success.
    failing: Once,
}

impl Herald {
    async fn tell_all(mut self, mut all: mpsc::Receiver<Vec<News>>) {
        loop {
            let now = Instant::now();
            let next = match self.rest.filter(|rest| *rest > now) {
                Some(rest) => Err(Some(rest)),
                None => self.outbox.take(now),
            };
            match next {
                Ok(message) => {
                    let request = self.written.request(&message, now, SystemTime::now());
                    let mut client = self.client.take();
                    let result = {
                        let (target, node) = (self.target.clone(), Arc::clone(&self.node));
                        let told = ask(&mut client, &target, &node, &message, &request);
                        let mut told = std::pin::pin!(told);
                        loop {
                            tokio::select! {
                                result = &mut told => break result,
                                news = all.recv() => match news {
                                    Some(news) => self.sort_in(news),
                                    None => return,
                                },
                            }
                        }
                    };
                    self.client = client;
                    self.conclude(message, request, result);
                }
                Err(until) => tokio::select! {
                    news = all.recv() => match news {
                        Some(news) => self.sort_in(news),
                        None => return,
                    },
                    () = rest(until) => {}
                },
            }
        }
    }

    fn sort_in(&mut self, news: Vec<News>) {
        let when = SystemTime::now();
        for one in news {
            if self.outbox.put(one, when) {
                count(&self.figures.events_dropped);
            }
        }
    }

    fn conclude(&mut self, message: Message, request: Request, result: Result<Answer, Failure>) {
        let (now, news) = (Instant::now(), &message.news);
        let answer = match result {
            Ok(answer) => answer,
            Err(failure) => return self.failed(message, failure),
        };
        self.pause = FIRST_PAUSE;
        self.failing.clear();
        match (answer, request) {
            (Answer::Done, Request::Nothing) => count(&self.figures.events_repeated),
            (Answer::Done, request) => {
                count(&self.figures.events_sent);
                self.written.done(news, request, now);
            }
            (Answer::Found, Request::Create(name, _)) => {
                count(&self.figures.events_repeated);
                self.written.found(news, name, now);
            }
            (Answer::Gone | Answer::Found, _) => {
                count(&self.figures.events_dropped);
                self.written.lost(news);
            }
        }
    }

    fn failed(&mut self, message: Message, Failure { reason, is_passing }: Failure) {
        count(&self.figures.events_failed);
        let (service, topic) = (&message.news.service, message.news.topic);
        let retries = if is_passing { "; the agent retries" } else { "" };
        if self.failing.begins(()) {
            warn!("the Event {topic} of Service {service} cannot be told: {reason}{retries}");
        } else {
            debug!(%service, %topic, "an Event cannot be told: {reason}{retries}");
        }
        if !is_passing {
            return;
        }
        self.rest = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        if self.outbox.put_back(message) {
            count(&self.figures.events_dropped);
        }
    }
}

/// Sleeps until then; forever if `None`.
async fn rest(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

async fn ask(
    client: &mut Option<Client>,
    target: &KubeTarget,
    node: &str,
    message: &Message,
    request: &Request,
) -> Result<Answer, Failure> {
    let passing = |reason| Failure { reason, is_passing: true };
    let asking = async {
        let client = match client {
            Some(client) => client.clone(),
            None => {
                let server = connect(target).await.map_err(|error| passing(error.to_string()))?;
                client.insert(server.client()).clone()
            }
        };
        let api = Api::<Event>::namespaced(client, &message.news.service.namespace);
        match request {
            Request::Nothing => Ok(Answer::Done),
            Request::Create(name, times) => {
                let event = event(node, message, name, *times);
                let result = api.create(&PostParams::default(), &event).await;
                result.map_or_else(|error| read(&error, "create"), |_| Ok(Answer::Done))
            }
            Request::Count(name, times) => {
                let patch = json!({
                    "series": series(message.when, *times),
                    "note": shortened(&message.news.note),
                });
                let params = PatchParams::default();
                let result = api.patch(name, &params, &Patch::Merge(&patch)).await;
                result.map_or_else(|error| read(&error, "patch"), |_| Ok(Answer::Done))
            }
        }
    };
    tokio::time::timeout(PATIENCE, asking).await.unwrap_or_else(|_| {
        Err(passing(format!("the API server did not answer within {} s", PATIENCE.as_secs())))
    })
}

/// Translates an error of the API server.
fn read(error: &kube::Error, verb: &str) -> Result<Answer, Failure> {
    let kube::Error::Api(status) = error else {
        return Err(Failure { reason: error.to_string(), is_passing: true });
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    match status.code {
        409 => Ok(Answer::Found),
        404 => Ok(Answer::Gone),
        403 if causes.into_iter().any(|cause| cause.reason == "NamespaceTerminating") => {
            Ok(Answer::Gone)
        }
        403 => Err(Failure {
            reason: format!(
                "the API server does not let this agent {verb} events.events.k8s.io ({}): allow \
                 the verbs create and patch on events of the API group events.k8s.io to its \
                 ServiceAccount or user; traffic does not depend on it",
                status.message.trim()
            ),
            is_passing: false,
        }),
        code => Err(Failure {
            reason: error.to_string(),
            is_passing: matches!(code, 401 | 429 | 500..=599),
        }),
    }
}

fn event(node: &str, message: &Message, name: &str, times: u32) -> Event {
    let Message { news, when, .. } = message;
    let regarding = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Service".to_owned()),
        namespace: Some(news.service.namespace.to_string()),
        name: Some(news.service.name.to_string()),
        // `kubectl describe` finds Events by the UID.
        uid: news.uid.map(|uid| uid.to_string()),
        ..ObjectReference::default()
    };
    Event {
        reason: Some(news.topic.to_string()),
        action: Some(news.topic.action().to_owned()),
        series: (times > 1).then(|| series(*when, times)),
        ..warning(node, name, regarding, &news.note, *when)
    }
}

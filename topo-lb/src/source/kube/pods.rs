//! The Pods of one node: metadata alone, and only where Pods can be excluded.

use std::collections::BTreeSet;
use std::time::Duration;

use ::kube::Api;
use ::kube::core::PartialObjectMeta;
use ::kube::runtime::watcher::{self, watcher};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1;
use tokio::time::{Instant, sleep_until};

use super::backoff::{LONGEST, pause, random};
use super::watch::overload;
use super::{KubeError, Server};
use crate::exclusion::{ANNOTATION, Pod, PodReport};

/// Pods that are asked for at a time.
const PAGE: u32 = 500;
/// A failure so long after the last one is the first in a row. Longer than the longest pause.
const QUIET: Duration = Duration::from_secs(60);

type Object = PartialObjectMeta<v1::Pod>;
type Events = BoxStream<'static, watcher::Result<watcher::Event<Object>>>;

/// Lists the Pods of a node, and follows every change to them. Never ends: whatever goes wrong is said
/// once as `Trouble`, and tried again at longer and longer intervals of at most half a minute.
pub fn pods(server: Server, node: &str) -> impl Stream<Item = PodReport> + Send + 'static {
    let node = node.to_owned();
    let events = events(&server, &node);
    let watch = Watch {
        server,
        node,
        events,
        listed: Vec::new(),
        failures: 0,
        rest: None,
        told: BTreeSet::new(),
    };
    stream::unfold(watch, async |mut watch| Some((watch.next().await, watch)))
}

struct Watch {
    server: Server,
    node: String,
    events: Events,
    /// Who was listed so far in a listing that goes on.
    listed: Vec<Pod>,
    /// Attempts in a row that failed.
    failures: u32,
    /// No attempt before.
    rest: Option<Instant>,
    /// Troubles that were said since the last listing.
    told: BTreeSet<String>,
}

impl Watch {
    async fn next(&mut self) -> PodReport {
        loop {
            if let Some(until) = self.rest {
                sleep_until(until).await;
            }
            match self.events.next().await {
                Some(Ok(event)) => {
                    if let Some(said) = self.take(event) {
                        return said;
                    }
                }
                Some(Err(error)) => {
                    self.pause();
                    if let Some(sentence) = self.news(&error) {
                        return PodReport::Trouble(sentence);
                    }
                }
                None => self.events = events(&self.server, &self.node),
            }
        }
    }

    /// Has the next attempt wait, whether something is said of this one or not.
    fn pause(&mut self) {
        let now = Instant::now();
        if self.rest.is_none_or(|rest| now > rest + QUIET) {
            // It went well in between.
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.rest = Some(now + pause(self.failures, LONGEST, random()));
    }

    fn take(&mut self, event: watcher::Event<Object>) -> Option<PodReport> {
        match event {
            watcher::Event::Init => {
                self.listed.clear();
                None
            }
            watcher::Event::InitApply(object) => {
                self.listed.extend(pod(object));
                None
            }
            watcher::Event::InitDone => {
                self.failures = 0;
                self.told.clear();
                Some(PodReport::All(std::mem::take(&mut self.listed)))
            }
            watcher::Event::Apply(object) => pod(object).map(PodReport::Pod),
            watcher::Event::Delete(object) => pod(object).map(|pod| PodReport::Gone(pod.uid)),
        }
    }

    /// What is to be said; `None` for what ends every watch now and then, and for what was said.
    fn news(&mut self, error: &watcher::Error) -> Option<String> {
        let (verb, request) = match error {
            watcher::Error::InitialListFailed(request) => ("list", request),
            watcher::Error::WatchStartFailed(request) => ("watch", request),
            watcher::Error::WatchFailed(_)
            | watcher::Error::WatchError(_)
            | watcher::Error::NoResourceVersion => return None,
        };
        let error = KubeError::of(request, self.server.url(), verb, "pods".to_owned());
        let sentence = format!("{error}; until then Pods that come are not excluded");
        // The words of an overloaded server differ with every request, and mean the same.
        let same = overload(request).map_or_else(|| sentence.clone(), |_| "overload".to_owned());
        self.told.insert(same).then_some(sentence)
    }
}

/// `None` for one without a UID, which no API server has.
fn pod(object: Object) -> Option<Pod> {
    let metadata = object.metadata;
    let exclude = metadata.annotations.and_then(|mut all| all.remove(ANNOTATION));
    Some(Pod {
        uid: metadata.uid?.into(),
        namespace: metadata.namespace.unwrap_or_default().into(),
        name: metadata.name.unwrap_or_default().into(),
        exclude: exclude.map(Into::into),
    })
}

fn events(server: &Server, node: &str) -> Events {
    let api = Api::<Object>::all(server.client());
    let config =
        watcher::Config::default().fields(&format!("spec.nodeName={node}")).page_size(PAGE);
    watcher(api, config).boxed()
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use ::kube::core::Status;
    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::super::KubeTarget;
    use super::super::connect::{Timing, connect_with};
    use super::super::fake::Fake;
    use super::*;

    const PODS: &str = "/api/v1/pods";

    fn object(name: &str, exclude: Option<&str>) -> Value {
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
            "name": name, "namespace": "meshed", "uid": format!("uid-{name}"),
            "annotations": exclude.map(|value| json!({ANNOTATION: value})),
        }})
    }

    async fn next(pods: &mut Pin<Box<impl Stream<Item = PodReport>>>) -> PodReport {
        tokio::time::timeout(Duration::from_secs(30), pods.next())
            .await
            .expect("nothing came")
            .expect("it never ends")
    }

    fn read(name: &str, exclude: Option<&str>) -> Pod {
        Pod {
            uid: format!("uid-{name}").into(),
            namespace: "meshed".into(),
            name: name.into(),
            exclude: exclude.map(Into::into),
        }
    }

    #[tokio::test]
    async fn the_metadata_of_this_nodes_pods_are_listed_and_followed() {
        let fake = Fake::new(&[PODS]).await;
        fake.change(PODS, "ADDED", object("a", Some("true")));
        let mut said = Box::pin(pods(fake.server.clone(), "n1"));
        assert_eq!(next(&mut said).await, PodReport::All(vec![read("a", Some("true"))]));
        fake.change(PODS, "ADDED", object("b", None));
        assert_eq!(next(&mut said).await, PodReport::Pod(read("b", None)));
        fake.change(PODS, "DELETED", object("b", None));
        assert_eq!(next(&mut said).await, PodReport::Gone("uid-b".into()));
        let requests = fake.state.lock().unwrap().requests.clone();
        for (path, accept) in requests {
            assert!(path.contains("fieldSelector=spec.nodeName%3Dn1"), "{path}");
            assert!(accept.contains("as=PartialObjectMetadata"), "{accept}");
        }
    }

    #[tokio::test]
    async fn what_the_server_refuses_is_said_once_until_it_serves() {
        let fake = Fake::new(&[PODS]).await;
        fake.state.lock().unwrap().refuse.insert(PODS.to_owned(), (403, "no"));
        let mut said = Box::pin(pods(fake.server.clone(), "n1"));
        let PodReport::Trouble(sentence) = next(&mut said).await else { panic!("no trouble") };
        assert!(sentence.contains("allow the verbs list and watch on pods"), "{sentence}");
        let begun = Instant::now();
        while fake.requested(PODS) < 4 {
            assert!(begun.elapsed() < Duration::from_secs(30), "it does not ask again");
            let more = tokio::time::timeout(Duration::from_millis(20), said.next()).await;
            assert!(more.is_err(), "{more:?}");
        }
        fake.state.lock().unwrap().refuse.clear();
        assert_eq!(next(&mut said).await, PodReport::All(Vec::new()));
    }

    /// A watch that goes by `events`; no server is asked.
    async fn watch(
        events: impl Stream<Item = watcher::Result<watcher::Event<Object>>> + Send + 'static,
    ) -> Watch {
        let target = KubeTarget::Server("http://127.0.0.1:1".to_owned());
        let server = connect_with(&target, Timing::DEFAULT).await.unwrap();
        Watch {
            server,
            node: "n1".to_owned(),
            events: events.boxed(),
            listed: Vec::new(),
            failures: 0,
            rest: None,
            told: BTreeSet::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_in_other_words_each_time_is_left_alone_in_between() {
        let mut number = 0;
        let refusals = stream::repeat_with(move || {
            number += 1;
            let code = if number % 2 == 0 { 429 } else { 503 };
            let status = Status::failure(&format!("request {number}"), "Test").with_code(code);
            Err(watcher::Error::InitialListFailed(::kube::Error::Api(Box::new(status))))
        });
        let end = json!({"kind": "Status", "status": "Failure", "message": "x", "code": 410});
        let end: Status = serde_json::from_value(end).unwrap();
        let last = stream::iter([
            Err(watcher::Error::WatchError(Box::new(end))),
            Ok(watcher::Event::Init),
            Ok(watcher::Event::InitDone),
        ]);
        let mut watch = watch(refusals.take(40).chain(last)).await;
        let begun = Instant::now();
        let mut troubles = 0;
        while let PodReport::Trouble(_) = watch.next().await {
            troubles += 1;
        }
        assert!(begun.elapsed() > Duration::from_secs(300), "{:?} for 40", begun.elapsed());
        assert_eq!(troubles, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_that_breaks_now_and_then_begins_again_at_once() {
        let hour = Duration::from_secs(3_600);
        let breaks = stream::iter(0..40).then(move |_| async move {
            sleep(hour).await;
            Err(watcher::Error::WatchFailed(::kube::Error::LinesCodecMaxLineLengthExceeded))
        });
        let done = stream::iter([Ok(watcher::Event::InitDone)]);
        let mut watch = watch(breaks.chain(done)).await;
        let begun = Instant::now();
        assert_eq!(watch.next().await, PodReport::All(Vec::new()));
        let paused = begun.elapsed() - hour * 40;
        assert!(paused < Duration::from_secs(21), "{paused:?} in 40 pauses");
    }
}

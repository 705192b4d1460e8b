//! The metadata of one node's Pods, watched only if Pods can be excluded or steered.

use std::time::Duration;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use tokio::time::{Instant, sleep_until};

use super::backoff::{LONGEST, pause, random};
use super::connect::Server;
use super::error::KubeError;
use super::error::{is_gone, overload};
use super::reflect::{Failure, Query, Reflected, changes};
use super::resource::{Kept as _, Watched};
use super::watch::watch_seconds;
use topo_lb_core::exclusion::{Pod, PodReport};
use topo_lb_core::once::Once;

/// A failure this long after the last pause is the first in a row. Exceeds the longest pause.
const QUIET: Duration = Duration::from_secs(60);

type Changes = BoxStream<'static, Result<Reflected<Pod>, Failure>>;

/// Lists the Pods of a node, and follows all changes. Never ends. Reports a trouble once as
/// `Trouble`, and retries after growing pauses of at most 30 s.
pub fn pods(server: Server, node: &str) -> impl Stream<Item = PodReport> + Send + 'static {
    let watch = Watch::new(server, node.to_owned());
    stream::unfold(watch, async |mut watch| Some((watch.next().await, watch)))
}

struct Watch {
    server: Server,
    node: String,
    changes: Changes,
    /// Pods of an incomplete listing.
    listed: Vec<Pod>,
    failures: u32,
    /// Earliest time of the next attempt.
    rest: Option<Instant>,
    /// Troubles reported since the last listing.
    troubles: Once<String>,
}

impl Watch {
    fn new(server: Server, node: String) -> Self {
        let (changes, listed) = (follow(&server, &node), Vec::new());
        Self { server, node, changes, listed, failures: 0, rest: None, troubles: Once::new() }
    }

    async fn next(&mut self) -> PodReport {
        loop {
            if let Some(until) = self.rest {
                sleep_until(until).await;
            }
            let report = match self.changes.next().await {
                Some(Ok(change)) => self.take(change),
                Some(Err(failure)) => self.failed(&failure).map(PodReport::Trouble),
                None => {
                    self.begin();
                    None
                }
            };
            if let Some(report) = report {
                return report;
            }
        }
    }

    /// Restarts with a listing.
    fn begin(&mut self) {
        self.changes = follow(&self.server, &self.node);
    }

    fn take(&mut self, change: Reflected<Pod>) -> Option<PodReport> {
        // Unreadable objects have no UID, which every Pod of an API server has.
        let pod = |object: Watched<Pod>| object.object.ok().map(|(pod, _)| pod);
        match change {
            Reflected::Begin => self.listed.clear(),
            Reflected::Listed(object) => self.listed.extend(pod(object)),
            Reflected::Complete => {
                self.failures = 0;
                self.troubles.clear();
                return Some(PodReport::All(std::mem::take(&mut self.listed)));
            }
            Reflected::Applied(object) => return pod(object).map(PodReport::Pod),
            Reflected::Deleted(object) => return pod(object).map(|pod| PodReport::Gone(pod.uid)),
        }
        None
    }

    /// Delays the next attempt. Returns what to report: no usual end of a watch, and nothing twice.
    fn failed(&mut self, failure: &Failure) -> Option<String> {
        let now = Instant::now();
        if self.rest.is_none_or(|rest| now > rest + QUIET) {
            self.failures = 0;
        }
        self.failures = self.failures.saturating_add(1);
        self.rest = Some(now + pause(self.failures, LONGEST, random()));
        let (verb, request) = match failure {
            Failure::List(request) => ("list", request),
            Failure::Begin(request) if is_gone(request) => {
                self.begin();
                return None;
            }
            Failure::Begin(request) => ("watch", request),
            Failure::Watch(_) | Failure::Told(_) | Failure::Short | Failure::NoVersion => {
                return None;
            }
        };
        let error = KubeError::of(request, self.server.url(), verb, Pod::resource());
        let sentence =
            format!("{error}; until then Pods that come are neither excluded nor steered");
        // An overloaded server's messages vary, but mean the same.
        let same = overload(request).map_or_else(|| sentence.clone(), |_| "overload".to_owned());
        self.troubles.begins(same).then_some(sentence)
    }
}

fn follow(server: &Server, node: &str) -> Changes {
    let selector = Some(format!("spec.nodeName={node}"));
    changes(server, Query { version: 0, selector, cached: true, seconds: watch_seconds() })
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;

    use serde_json::{Value, json};
    use tokio::time::sleep;

    use super::super::fake::{Fake, nowhere, refused};
    use super::*;
    use topo_lb_core::cluster::Annotation;

    const PODS: &str = "/api/v1/pods";

    fn object(name: &str, exclude: Option<&str>) -> Value {
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
            "name": name, "namespace": "meshed", "uid": format!("uid-{name}"),
            "annotations": exclude.map(|value| json!({Annotation::Exclude.name(): value})),
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
            steer: None,
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
        let requests = fake.state().requests.clone();
        for (path, accept) in requests {
            assert!(path.contains("fieldSelector=spec.nodeName%3Dn1"), "{path}");
            assert!(accept.contains("as=PartialObjectMetadata"), "{accept}");
        }
    }

    #[tokio::test]
    async fn what_the_server_refuses_is_said_once_until_it_serves() {
        let fake = Fake::new(&[PODS]).await;
        fake.state().refuse.insert(PODS, (403, "no"));
        let mut said = Box::pin(pods(fake.server.clone(), "n1"));
        let PodReport::Trouble(sentence) = next(&mut said).await else { panic!("no trouble") };
        assert!(sentence.contains("allow the verbs list and watch on pods"), "{sentence}");
        let begun = Instant::now();
        while fake.requested(PODS) < 4 {
            assert!(begun.elapsed() < Duration::from_secs(30), "it does not ask again");
            let more = tokio::time::timeout(Duration::from_millis(20), said.next()).await;
            assert!(more.is_err(), "{more:?}");
        }
        fake.state().refuse.clear();
        assert_eq!(next(&mut said).await, PodReport::All(Vec::new()));
    }

    /// A watch that gets `changes`, without a server.
    async fn watch(
        changes: impl Stream<Item = Result<Reflected<Pod>, Failure>> + Send + 'static,
    ) -> Watch {
        Watch { changes: changes.boxed(), ..Watch::new(nowhere().await, "n1".to_owned()) }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_refuses_in_other_words_each_time_is_left_alone_in_between() {
        let refusal = |number| Err(Failure::List(refused(429 + 74 * (number as u16 % 2), number)));
        let last =
            [Err(Failure::Told(refused(410, 41))), Ok(Reflected::Begin), Ok(Reflected::Complete)];
        let mut watch = watch(stream::iter((0..40).map(refusal).chain(last))).await;
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
            Err(Failure::Watch(::kube::Error::LinesCodecMaxLineLengthExceeded))
        });
        let done = stream::iter([Ok(Reflected::Complete)]);
        let mut watch = watch(breaks.chain(done)).await;
        let begun = Instant::now();
        assert_eq!(watch.next().await, PodReport::All(Vec::new()));
        let paused = begun.elapsed() - hour * 40;
        assert!(paused < Duration::from_secs(21), "{paused:?} in 40 pauses");
    }

    #[tokio::test]
    async fn pods_are_listed_again_when_the_server_has_forgotten_the_past() {
        let fake = Fake::new(&[PODS]).await;
        let mut said = Box::pin(pods(fake.server.clone(), "n1"));
        assert_eq!(next(&mut said).await, PodReport::All(Vec::new()));
        fake.state().refuses_expired = true;
        fake.forget(PODS, vec![object("a", None)]);
        fake.hang_up();
        assert_eq!(next(&mut said).await, PodReport::All(vec![read("a", None)]));
    }
}

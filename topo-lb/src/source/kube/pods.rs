//! The Pods of one node: metadata alone, and only where Pods can be excluded.

use ::kube::Api;
use ::kube::core::PartialObjectMeta;
use ::kube::runtime::watcher::{self, watcher};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::core::v1;
use tokio::time::sleep;

use super::backoff::{LONGEST, pause, random};
use super::{KubeError, Server};
use crate::exclusion::{ANNOTATION, Pod, Said};

/// Pods that are asked for at a time.
const PAGE: u32 = 500;

type Object = PartialObjectMeta<v1::Pod>;
type Events = BoxStream<'static, watcher::Result<watcher::Event<Object>>>;

/// Lists the Pods of a node, and follows every change to them. Never ends: whatever goes wrong is said
/// once as `Trouble`, and tried again at longer and longer intervals of at most half a minute.
pub fn pods(server: Server, node: &str) -> impl Stream<Item = Said> + Send + 'static {
    let node = node.to_owned();
    let events = events(&server, &node);
    let watch = Watch { server, node, events, listed: Vec::new(), failures: 0, said: None };
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
    /// What is wrong, as it was said.
    said: Option<String>,
}

impl Watch {
    async fn next(&mut self) -> Said {
        loop {
            match self.events.next().await {
                Some(Ok(event)) => {
                    if let Some(said) = self.take(event) {
                        return said;
                    }
                }
                Some(Err(error)) => {
                    let sentence = self.sentence(&error);
                    let is_new = sentence.is_some() && sentence != self.said;
                    if is_new {
                        self.said.clone_from(&sentence);
                    }
                    // What is said at once is waited for by the next attempt.
                    if let Some(sentence) = sentence.filter(|_| is_new) {
                        return Said::Trouble(sentence);
                    }
                    self.failures = self.failures.saturating_add(1);
                    sleep(pause(self.failures, LONGEST, random())).await;
                }
                None => self.events = events(&self.server, &self.node),
            }
        }
    }

    fn take(&mut self, event: watcher::Event<Object>) -> Option<Said> {
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
                self.said = None;
                Some(Said::All(std::mem::take(&mut self.listed)))
            }
            watcher::Event::Apply(object) => pod(object).map(Said::Pod),
            watcher::Event::Delete(object) => pod(object).map(|pod| Said::Gone(pod.uid)),
        }
    }

    /// `None` for what ends every watch now and then.
    fn sentence(&self, error: &watcher::Error) -> Option<String> {
        let (verb, request) = match error {
            watcher::Error::InitialListFailed(request) => ("list", request),
            watcher::Error::WatchStartFailed(request) => ("watch", request),
            watcher::Error::WatchFailed(_)
            | watcher::Error::WatchError(_)
            | watcher::Error::NoResourceVersion => return None,
        };
        let error = KubeError::of(request, self.server.url(), verb, "pods".to_owned());
        Some(format!("{error}; until then Pods that come are not excluded"))
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
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::super::fake::Fake;
    use super::*;

    const PODS: &str = "/api/v1/pods";

    fn object(name: &str, exclude: Option<&str>) -> Value {
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": {
            "name": name, "namespace": "meshed", "uid": format!("uid-{name}"),
            "annotations": exclude.map(|value| json!({ANNOTATION: value})),
        }})
    }

    async fn next(pods: &mut Pin<Box<impl Stream<Item = Said>>>) -> Said {
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
        assert_eq!(next(&mut said).await, Said::All(vec![read("a", Some("true"))]));
        fake.change(PODS, "ADDED", object("b", None));
        assert_eq!(next(&mut said).await, Said::Pod(read("b", None)));
        fake.change(PODS, "DELETED", object("b", None));
        assert_eq!(next(&mut said).await, Said::Gone("uid-b".into()));
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
        let Said::Trouble(sentence) = next(&mut said).await else { panic!("no trouble") };
        assert!(sentence.contains("allow the verbs list and watch on pods"), "{sentence}");
        fake.state.lock().unwrap().refuse.clear();
        assert_eq!(next(&mut said).await, Said::All(Vec::new()));
    }
}

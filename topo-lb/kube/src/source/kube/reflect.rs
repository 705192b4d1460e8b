//! Lists all objects of a kind, then watches them.

use std::collections::VecDeque;
use std::time::Duration;

use ::kube::Resource as _;
use ::kube::api::{ListParams, WatchEvent, WatchParams};
use ::kube::client::Body;
use ::kube::core::Request;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use http::Response;
use http_body_util::BodyExt as _;
use serde::Deserialize;
use serde::de::Error as _;
use tokio::time::Instant;

use super::connect::Server;
use super::error::refusal;
use super::items::{Items, NoList};
use super::resource::{Kept, Watched};
use crate::source::object::Names;

/// A watch that the server ends earlier than this without an event is a failure. The server may be
/// overloaded, or a proxy, and would otherwise get the next request without a pause.
const SHORTEST: Duration = Duration::from_secs(1);

/// What a list or a watch brought.
#[derive(Debug)]
pub(super) enum Reflected<T> {
    /// A listing begins.
    Begin,
    /// An object of the listing.
    Listed(Watched<T>),
    /// The listing is complete.
    Complete,
    /// The object was created or changed.
    Applied(Watched<T>),
    Deleted(Watched<T>),
}

/// A failure. Polling for the next change retries.
#[derive(Debug)]
pub(super) enum Failure {
    List(::kube::Error),
    /// A watch could not begin.
    Begin(::kube::Error),
    /// A watch broke, or sent something that cannot be parsed.
    Watch(::kube::Error),
    /// The server ended a watch with this status.
    Told(::kube::Error),
    /// The server ended a watch right after its begin.
    Short,
    /// The list has no resource version to watch from.
    NoVersion,
}

#[derive(Clone, Debug)]
pub(super) struct Query {
    /// Index of the API version.
    pub(super) version: usize,
    pub(super) selector: Option<String>,
    /// Allows a list from the server's cache (`resourceVersion=0`), which spares its database; the
    /// kubelet and kube-proxy begin like this, too. Otherwise the list is the newest.
    pub(super) cached: bool,
    /// The server ends a watch after this many seconds.
    pub(super) seconds: u32,
}

/// Never ends. After a failure it resumes from the last version, or lists again if that expired.
pub(super) fn changes<T: Kept>(
    server: &Server,
    query: Query,
) -> BoxStream<'static, Result<Reflected<T>, Failure>> {
    let reflector = Reflector { server: server.clone(), query, step: Step::Anew };
    stream::unfold(reflector, async |mut it| Some((it.next().await, it))).boxed()
}

type Events<T> = BoxStream<'static, ::kube::Result<WatchEvent<Watched<T>>>>;

struct Reflector<T: Kept> {
    server: Server,
    query: Query,
    step: Step<T>,
}

enum Step<T: Kept> {
    Anew,
    /// Requests the first page, or the page of this token.
    Ask(Option<String>),
    Read(Page<T>),
    /// Begins a watch from this resource version.
    Begin(String),
    /// With the last version, and the watch's begin until its first event.
    Watch(Events<T>, String, Option<Instant>),
}

struct Page<T> {
    body: Body,
    items: Items,
    ready: VecDeque<Watched<T>>,
    names: Names,
}

/// The needed fields of a list besides its objects.
#[derive(Deserialize)]
struct List {
    #[serde(default)]
    metadata: ListMetadata,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ListMetadata {
    resource_version: Option<String>,
    r#continue: Option<String>,
}

impl<T: Kept> Reflector<T> {
    async fn next(&mut self) -> Result<Reflected<T>, Failure> {
        loop {
            // Errors without another next step restart with a listing.
            match std::mem::replace(&mut self.step, Step::Anew) {
                Step::Anew => {
                    self.step = Step::Ask(None);
                    return Ok(Reflected::Begin);
                }
                Step::Ask(token) => {
                    let body = ask::<T>(&self.server, &self.query, token)
                        .await
                        .map_err(Failure::List)?
                        .into_body();
                    let (items, ready) = (Items::default(), VecDeque::new());
                    self.step = Step::Read(Page { body, items, ready, names: Names::default() });
                }
                Step::Read(mut page) => {
                    if let Some(object) = page.ready.pop_front() {
                        self.step = Step::Read(page);
                        return Ok(Reflected::Listed(object));
                    }
                    if page.read_on().await.map_err(Failure::List)? {
                        self.step = Step::Read(page);
                        continue;
                    }
                    let metadata = page.finish().map_err(Failure::List)?;
                    if let Some(token) = metadata.r#continue.filter(|token| !token.is_empty()) {
                        self.step = Step::Ask(Some(token));
                        continue;
                    }
                    let version = metadata.resource_version.filter(|version| !version.is_empty());
                    self.step = Step::Begin(version.ok_or(Failure::NoVersion)?);
                    // Later, another server's cache may be older than what was seen.
                    self.query.cached = false;
                    return Ok(Reflected::Complete);
                }
                Step::Begin(from) => match watch::<T>(&self.server, &self.query, &from).await {
                    Ok(events) => self.step = Step::Watch(events, from, Some(Instant::now())),
                    Err(error) => {
                        self.step = Step::Begin(from);
                        return Err(Failure::Begin(error));
                    }
                },
                Step::Watch(events, from, begun) => {
                    if let Some(result) = self.follow(events, from, begun).await {
                        return result;
                    }
                }
            }
        }
    }

    /// The next change; `None` if the event is none.
    async fn follow(
        &mut self,
        mut events: Events<T>,
        from: String,
        begun: Option<Instant>,
    ) -> Option<Result<Reflected<T>, Failure>> {
        match events.next().await {
            None => {
                self.step = Step::Begin(from);
                if begun.is_some_and(|begun| begun.elapsed() < SHORTEST) {
                    return Some(Err(Failure::Short));
                }
            }
            Some(Ok(WatchEvent::Bookmark(bookmark))) => {
                self.step = Step::Watch(events, bookmark.metadata.resource_version, None);
            }
            Some(Ok(WatchEvent::Error(status))) => {
                if status.code != 410 {
                    self.step = Step::Begin(from);
                }
                return Some(Err(Failure::Told(::kube::Error::Api(status))));
            }
            Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => {
                self.step = Step::Watch(events, object.resource_version().to_owned(), None);
                return Some(Ok(Reflected::Applied(object)));
            }
            Some(Ok(WatchEvent::Deleted(object))) => {
                self.step = Step::Watch(events, object.resource_version().to_owned(), None);
                return Some(Ok(Reflected::Deleted(object)));
            }
            Some(Err(error)) => {
                // On a new watch the unparsable line would come again.
                let goes_on = matches!(error, ::kube::Error::SerdeError(_));
                self.step =
                    if goes_on { Step::Watch(events, from, None) } else { Step::Begin(from) };
                return Some(Err(Failure::Watch(error)));
            }
        }
        None
    }
}

fn requests<T: Kept>(query: &Query) -> Request {
    Request::new(Watched::<T>::url_path(&T::VERSIONS[query.version], None))
}

/// Requests a page of the list: the first, or the one of this token.
async fn ask<T: Kept>(
    server: &Server,
    query: &Query,
    token: Option<String>,
) -> ::kube::Result<Response<Body>> {
    let is_first = token.is_none();
    let params = ListParams {
        field_selector: query.selector.clone(),
        limit: Some(T::PAGE),
        continue_token: token,
        ..ListParams::default()
    };
    let requests = requests::<T>(query);
    let request =
        if T::METADATA_ONLY { requests.list_metadata(&params) } else { requests.list(&params) };
    let mut request = request.map_err(::kube::Error::BuildRequest)?;
    if is_first && query.cached {
        // kube-rs leaves it out if there is a limit. A server without such a cache obeys the limit.
        let uri = format!("{}&resourceVersion=0", request.uri());
        *request.uri_mut() = uri
            .parse()
            .map_err(|error: http::uri::InvalidUri| ::kube::Error::HttpError(error.into()))?;
    }
    let response = server.client().send(request.map(Body::from)).await?;
    let status = response.status();
    if status.is_success() {
        return Ok(response);
    }
    Err(refusal(status, &response.into_body().collect().await?.to_bytes()))
}

async fn watch<T: Kept>(server: &Server, query: &Query, from: &str) -> ::kube::Result<Events<T>> {
    let params = WatchParams {
        field_selector: query.selector.clone(),
        timeout: Some(query.seconds),
        ..WatchParams::default()
    };
    let requests = requests::<T>(query);
    let request = if T::METADATA_ONLY {
        requests.watch_metadata(&params, from)
    } else {
        requests.watch(&params, from)
    };
    let request = request.map_err(::kube::Error::BuildRequest)?;
    Ok(server.client().request_events(request).await?.boxed())
}

impl<T: Kept> Page<T> {
    /// Reads the next piece. Returns whether there was one.
    async fn read_on(&mut self) -> ::kube::Result<bool> {
        let Some(frame) = self.body.frame().await else { return Ok(false) };
        let frame = frame?;
        if let Some(piece) = frame.data_ref() {
            let (ready, names) = (&mut self.ready, &mut self.names);
            let each = |object: &[u8]| ready.push_back(Watched::read(object, names));
            self.items.feed(piece, each).map_err(|NoList| no_list())?;
        }
        Ok(true)
    }

    fn finish(self) -> ::kube::Result<ListMetadata> {
        let rest = self.items.finish().map_err(|NoList| no_list())?;
        let list: List = serde_json::from_slice(&rest).map_err(::kube::Error::SerdeError)?;
        Ok(list.metadata)
    }
}

fn no_list() -> ::kube::Error {
    ::kube::Error::SerdeError(serde_json::Error::custom("no whole list of objects"))
}

//! A fake API server: lists in pages, watches that resume, and failures on request. For what a real
//! server seldom does, and for sizes that would take hours to fill into a real one.
//!
//! It must never know topo-lb or the lab: it serves JSON. So unit tests need not compile the lab.
//!
//! The door: [`FakeApi`] serves; [`State`] has its objects, and the failures that a test asks for.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::body::Body;
use axum::extract::{Query, State as Shared};
use axum::http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, DATE, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use futures::stream;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};

mod watches;

use watches::Watch;

/// The path of all Nodes.
pub const NODES: &str = "/api/v1/nodes";
/// The path of all Services.
pub const SERVICES: &str = "/api/v1/services";
/// The path of all EndpointSlices.
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";
/// The path of all EndpointSlices at a server older than Kubernetes 1.21.
pub const OLD_SLICES: &str = "/apis/discovery.k8s.io/v1beta1/endpointslices";
/// The path of all Namespaces.
pub const NAMESPACES: &str = "/api/v1/namespaces";
/// The path of all TopologyPolicies.
pub const POLICIES: &str = "/apis/topo-lb.io/v1alpha1/topologypolicies";
/// The path of all ClusterTopologyPolicies.
pub const CLUSTER_POLICIES: &str = "/apis/topo-lb.io/v1alpha1/clustertopologypolicies";

/// Every path that an agent reads.
pub const ALL: [&str; 6] = [NODES, SERVICES, SLICES, NAMESPACES, POLICIES, CLUSTER_POLICIES];

/// An HTTP status and a message.
type Refusal = (u16, &'static str);
const EXPIRED: Refusal = (410, "too old resource version");
const UNKNOWN: Refusal = (404, "the server could not find the requested resource");

/// Objects, requests and failures of a server.
#[derive(Debug, Default)]
pub struct State {
    /// The texts of objects by path, and by namespace and name. Other paths give 404.
    lists: BTreeMap<String, BTreeMap<String, String>>,
    /// All changes; the index is the resource version minus 1.
    log: Vec<Changed>,
    /// Watches from an older resource version are refused as expired.
    oldest: usize,
    /// Answers other paths with a text.
    texts: Texts,
    /// Paths that are answered with a refusal.
    pub refuse: BTreeMap<&'static str, Refusal>,
    /// Paths whose requests for all objects are refused; those for one object are served.
    pub refuse_all: BTreeMap<&'static str, Refusal>,
    /// Expired watches are answered with status 410, not begun and ended with an error event.
    pub refuses_expired: bool,
    /// Requests and watches get no answer; connections stay open.
    pub stalled: bool,
    /// Sends half of the next watch event, and then nothing more.
    pub sends_half: bool,
    /// Watches end when they begin.
    pub ends_watches: bool,
    /// Requests with another token get 401.
    pub token: Option<&'static str>,
    /// The header `retry-after` of refusals.
    pub retry_after: Option<&'static str>,
    /// The header `date` of texts; `None`: as this machine's clock says.
    pub date: Option<&'static str>,
    /// All requests: path with query, and the header `accept`.
    pub requests: Vec<(String, String)>,
    /// The number of open watches.
    pub watches: usize,
    /// Bytes sent so far for lists.
    pub listed: u64,
    /// Bytes sent so far for watches.
    pub watched: u64,
    /// When the last page of a list was sent.
    pub finished: Option<Instant>,
}

/// A text for a path, if there is one.
type Text = dyn Fn(&str) -> Option<String> + Send;

/// Texts by path.
#[derive(Default)]
struct Texts(Option<Box<Text>>);

impl fmt::Debug for Texts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Texts")
    }
}

/// A change for the watches.
#[derive(Debug, Default)]
struct Changed {
    path: String,
    name: String,
    line: String,
}

/// The server, in a thread of its own; dropping it ends it.
#[derive(Debug)]
pub struct FakeApi {
    address: SocketAddr,
    inner: Arc<Inner>,
    _end: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    /// Breaks the watches.
    broken: watch::Sender<()>,
}

impl FakeApi {
    /// A server with these paths and no objects.
    ///
    /// # Errors
    /// The system refuses a socket option, or a runtime.
    pub fn start(listener: TcpListener, paths: &[&str]) -> Result<Self> {
        listener.set_nonblocking(true).context("cannot listen")?;
        let address = listener.local_addr().context("a listener has an address")?;
        let state = Mutex::new(State {
            lists: paths.iter().map(|path| ((*path).to_owned(), BTreeMap::new())).collect(),
            // No list has the resource version 0, which means "any".
            log: vec![Changed::default()],
            ..State::default()
        });
        let (changed, broken) = (watch::Sender::default(), watch::Sender::default());
        let inner = Arc::new(Inner { state, changed, broken });
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&inner));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        thread::spawn(move || {
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                // Like servers written in Go: events are sent at once.
                let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
                tokio::select! {
                    served = axum::serve(listener, router) => served,
                    // The sender never sends; it was dropped.
                    _ = ended => Ok(()),
                }
            })
        });
        Ok(Self { address, inner, _end: end })
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its objects, requests and failures.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state()
    }

    /// Adds objects of a path without telling watches.
    pub fn fill(&self, path: &str, objects: impl IntoIterator<Item = Value>) {
        let objects = objects.into_iter().map(|object| (name(&object), object.to_string()));
        self.state().lists.entry(path.to_owned()).or_default().extend(objects);
    }

    /// Adds objects of any kinds, each to the path of its kind, without telling watches.
    pub fn fill_all(&self, objects: impl IntoIterator<Item = Value>) {
        for object in objects {
            let path = match object["kind"].as_str() {
                Some("Node") => NODES,
                Some("Service") => SERVICES,
                Some("Namespace") => NAMESPACES,
                Some("TopologyPolicy") => POLICIES,
                Some("ClusterTopologyPolicy") => CLUSTER_POLICIES,
                _ if object["apiVersion"] == "discovery.k8s.io/v1beta1" => OLD_SLICES,
                _ => SLICES,
            };
            self.fill(path, [object]);
        }
    }

    /// Adds, changes or deletes an object (`ADDED`, `MODIFIED`, `DELETED`), and tells the watches.
    pub fn change(&self, path: &str, how: &str, mut object: Value) {
        let mut state = self.state();
        let version = state.log.len() + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let (name, text) = (name(&object), object.to_string());
        let line = format!("{{\"type\":\"{how}\",\"object\":{text}}}\n");
        let list = state.lists.entry(path.to_owned()).or_default();
        match how {
            "DELETED" => list.remove(&name),
            _ => list.insert(name.clone(), text),
        };
        state.log.push(Changed { path: path.to_owned(), name, line });
        drop(state);
        self.inner.changed.send_replace(());
    }

    /// Replaces the objects of a path without telling watches, and expires all earlier versions.
    pub fn forget(&self, path: &str, objects: impl IntoIterator<Item = Value>) {
        self.state().lists.remove(path);
        self.fill(path, objects);
        let mut state = self.state();
        state.log.push(Changed::default());
        state.oldest = state.log.len();
    }

    /// Answers paths without objects by `text`, if that has an answer.
    pub fn answer_texts(&self, text: impl Fn(&str) -> Option<String> + Send + 'static) {
        self.state().texts = Texts(Some(Box::new(text)));
    }

    /// Breaks all watches.
    pub fn hang_up(&self) {
        self.inner.broken.send_replace(());
    }

    /// How many requests had `part` in their path or query.
    #[must_use]
    pub fn requested(&self, part: &str) -> usize {
        self.state().requests.iter().filter(|(path, _)| path.contains(part)).count()
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The namespace, if any, and the name.
fn name(object: &Value) -> String {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", text("namespace"), text("name"))
}

async fn answer(
    Shared(inner): Shared<Arc<Inner>>,
    uri: Uri,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Response {
    while inner.state().stalled {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let path = uri.path();
    // Clients here select by no other field of an object that they watch alone.
    let selected = query.get("fieldSelector").and_then(|it| it.strip_prefix("metadata.name="));
    let watches = query.contains_key("watch");
    let from = query.get("resourceVersion").and_then(|from| from.parse().ok()).unwrap_or(0);
    let mut state = inner.state();
    state.requests.push((uri.to_string(), header(ACCEPT).to_owned()));
    let is_wrong = |token| header(AUTHORIZATION).strip_prefix("Bearer ") != Some(token);
    let refusal = if state.token.is_some_and(is_wrong) {
        Some((401, "Unauthorized"))
    } else if watches && state.refuses_expired && from < state.oldest {
        Some(EXPIRED)
    } else if let Some(refusal) = state.refuse.get(path) {
        Some(*refusal)
    } else if let Some(refusal) = state.refuse_all.get(path).filter(|_| selected.is_none()) {
        Some(*refusal)
    } else {
        (!state.lists.contains_key(path)).then_some(UNKNOWN)
    };
    if refusal == Some(UNKNOWN)
        && let Some(text) = state.texts.0.as_ref().and_then(|text| text(path))
    {
        let mut response = text.into_response();
        if let Some(date) = state.date {
            response.headers_mut().insert(DATE, HeaderValue::from_static(date));
        }
        return response;
    }
    if let Some(refusal) = refusal {
        let mut response = json_response(refusal.0, status(refusal).to_string().into());
        if let Some(seconds) = state.retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(seconds));
        }
        return response;
    }
    if !watches {
        let body = page(&state, path, selected, &query);
        state.listed += body.len() as u64;
        state.finished = Some(Instant::now());
        return json_response(200, body.into());
    }
    drop(state);
    let watch = Watch::begin(&inner, path, selected, from);
    let lines = stream::unfold(watch, async |mut watch| Some((watch.next().await?, watch)));
    json_response(200, Body::from_stream(lines))
}

fn json_response(code: u16, body: Body) -> Response {
    let code = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (code, [(CONTENT_TYPE, "application/json")], body).into_response()
}

fn status((code, message): Refusal) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
           "message": message, "reason": "Test", "code": code})
}

fn page(
    state: &State,
    path: &str,
    selected: Option<&str>,
    query: &BTreeMap<String, String>,
) -> String {
    let number = |key: &str| query.get(key).and_then(|text| text.parse::<usize>().ok());
    let (start, limit) = (number("continue").unwrap_or(0), number("limit").unwrap_or(usize::MAX));
    let all = &state.lists[path];
    let is_meant = |name: &str| selected.is_none_or(|selected| is_named(name, selected));
    // One label with its value, as in `zone=a`.
    let label = query.get("labelSelector").and_then(|it| it.split_once('='));
    let carries = |text: &str| {
        label.is_none_or(|(key, value)| {
            let object: Value = serde_json::from_str(text).unwrap_or_default();
            object["metadata"]["labels"][key] == value
        })
    };
    let meant = all.iter().filter(|(name, text)| is_meant(name) && carries(text));
    let items: Vec<_> = meant.skip(start).take(limit).map(|(_, text)| &**text).collect();
    let end = start + items.len();
    let token = if selected.is_none() && end < all.len() { end.to_string() } else { String::new() };
    // As a server does: only without selectors.
    let more = match &*token {
        "" => String::new(),
        _ => format!(r#","remainingItemCount":{}"#, all.len() - end),
    };
    // `/apis/discovery.k8s.io/v1/endpointslices` is of `discovery.k8s.io/v1`.
    let version = path.trim_start_matches("/apis/").trim_start_matches("/api/");
    let (version, plural) = version.rsplit_once('/').unwrap_or_default();
    let kind = match plural {
        "nodes" => "NodeList",
        "services" => "ServiceList",
        "endpointslices" => "EndpointSliceList",
        _ => "List",
    };
    // Servers written in Go say `null` for an empty list.
    let items = if items.is_empty() { "null".to_owned() } else { format!("[{}]", items.join(",")) };
    let newest = state.log.len();
    format!(
        r#"{{"kind":"{kind}","apiVersion":"{version}","metadata":{{"resourceVersion":"{newest}","continue":"{token}"{more}}},"items":{items}}}"#
    )
}

/// Whether this is the name after the namespace.
fn is_named(full: &str, name: &str) -> bool {
    full.rsplit_once('/').is_some_and(|(_, own)| own == name)
}

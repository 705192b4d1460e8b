//! An API server's lists and watches at sizes for which the real one takes hours to be filled. It
//! stands beside the real one, against which everything else is tested, and counts bytes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use futures::StreamExt as _;
use serde_json::Value;
use tokio::runtime;
use tokio::sync::{broadcast, oneshot};
use topo_lb_tests::netns::NetNs;

use topo_lb_tests::population::Population;

/// What is listed and watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Services,
    Slices,
    Nodes,
}

impl Kind {
    fn at(path: &str) -> Option<Self> {
        match path {
            "/api/v1/services" => Some(Self::Services),
            "/apis/discovery.k8s.io/v1/endpointslices"
            | "/apis/discovery.k8s.io/v1beta1/endpointslices" => Some(Self::Slices),
            "/api/v1/nodes" => Some(Self::Nodes),
            _ => None,
        }
    }

    /// What a list of it is called.
    fn list(self) -> &'static str {
        match self {
            Self::Services => "ServiceList",
            Self::Slices => "EndpointSliceList",
            Self::Nodes => "NodeList",
        }
    }
}

/// A change, as watches say it.
#[derive(Clone, Debug)]
struct Changed {
    kind: Kind,
    name: String,
    line: Bytes,
}

/// The server; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    _end: oneshot::Sender<()>,
}

#[derive(Debug)]
struct Shared {
    population: Population,
    form: fn(Value) -> Value,
    events: broadcast::Sender<Changed>,
    /// The last resource version; lists are of the first.
    version: AtomicU64,
    watches: AtomicUsize,
    listed: AtomicU64,
    watched: AtomicU64,
    /// When the last page was handed over.
    finished: Mutex<Instant>,
}

impl Server {
    /// Serves a population in a network namespace, each object that is listed as `form` makes it.
    pub(crate) fn start(
        netns: &NetNs,
        population: Population,
        form: fn(Value) -> Value,
    ) -> Result<Self> {
        let listener = netns.run(|| TcpListener::bind("127.0.0.1:0").context("cannot listen"))?;
        listener.set_nonblocking(true).context("cannot listen")?;
        let address = listener.local_addr().context("a listener has an address")?;
        let shared = Arc::new(Shared {
            population,
            form,
            events: broadcast::Sender::new(16_384),
            version: AtomicU64::new(1),
            watches: AtomicUsize::new(0),
            listed: AtomicU64::new(0),
            watched: AtomicU64::new(0),
            finished: Mutex::new(Instant::now()),
        });
        let router = axum::Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let (end, ended) = oneshot::channel();
        thread::spawn(move || {
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                // As every server that is written in Go: an event is sent at once.
                let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
                tokio::select! {
                    served = axum::serve(listener, router) => served,
                    // Nothing is ever sent: the other end is gone.
                    _ = ended => Ok(()),
                }
            })
        });
        Ok(Self { address, shared, _end: end })
    }

    /// How many watches are open.
    pub(crate) fn watches(&self) -> usize {
        self.shared.watches.load(Relaxed)
    }

    /// Bytes of lists, and of watches, so far.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.shared.listed.load(Relaxed), self.shared.watched.load(Relaxed))
    }

    /// When the last page of a list was handed over.
    pub(crate) fn finished(&self) -> Instant {
        *self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells every watch of a changed object, which gets a new resource version.
    pub(crate) fn modify(&self, kind: Kind, mut object: Value) {
        let version = self.shared.version.fetch_add(1, Relaxed) + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let line = format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into();
        // Fails where no watch is open.
        let _ = self.shared.events.send(Changed { kind, name, line });
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    uri: Uri,
    Query(query): Query<BTreeMap<String, String>>,
) -> Response {
    let Some(kind) = Kind::at(uri.path()) else {
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
            "message":"the server could not find the requested resource","reason":"NotFound",
            "code":404}"#;
        return (StatusCode::NOT_FOUND, [(header::CONTENT_TYPE, JSON)], status).into_response();
    };
    if query.contains_key("watch") {
        watch(&shared, kind, selected(&query))
    } else {
        page(&shared, kind, uri.path(), &query)
    }
}

const JSON: &str = "application/json";

/// `v1` of `/api/v1/nodes`, `discovery.k8s.io/v1` of `/apis/discovery.k8s.io/v1/endpointslices`.
fn version(path: &str) -> &str {
    let path = path.strip_prefix("/apis/").or(path.strip_prefix("/api/")).unwrap_or(path);
    path.rsplit_once('/').map_or(path, |(version, _)| version)
}

/// The only name that is asked for; no client here selects by another field.
fn selected(query: &BTreeMap<String, String>) -> Option<String> {
    query.get("fieldSelector")?.strip_prefix("metadata.name=").map(str::to_owned)
}

fn page(shared: &Shared, kind: Kind, path: &str, query: &BTreeMap<String, String>) -> Response {
    let number = |key: &str| query.get(key).and_then(|text| text.parse::<u32>().ok());
    let population = &shared.population;
    // Slices go by the Service, so that a page is a number of Services.
    let all = if kind == Kind::Nodes { population.nodes } else { population.services };
    let start = number("continue").unwrap_or(0);
    let name = selected(query);
    let limit = number("limit").filter(|&limit| limit > 0 && name.is_none()).unwrap_or(all);
    let end = start.saturating_add(limit).min(all);
    let items: Vec<String> = (start..end)
        .flat_map(|index| match kind {
            Kind::Nodes => vec![population.node(index)],
            Kind::Services => vec![population.service(index)],
            Kind::Slices => population.slices(index, |_| true),
        })
        .filter(|object| name.as_ref().is_none_or(|name| object["metadata"]["name"] == **name))
        .map(|object| (shared.form)(object).to_string())
        .collect();
    let next = if end < all { end.to_string() } else { String::new() };
    let body = format!(
        r#"{{"kind":"{}","apiVersion":"{}","metadata":{{"resourceVersion":"1","continue":"{next}"}},"items":[{}]}}"#,
        kind.list(),
        version(path),
        items.join(",")
    );
    shared.listed.fetch_add(body.len() as u64, Relaxed);
    *shared.finished.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    ([(header::CONTENT_TYPE, JSON)], body).into_response()
}

/// A watch that is open.
struct Open(Arc<Shared>);

impl Open {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.watches.fetch_add(1, Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Relaxed);
    }
}

fn watch(shared: &Arc<Shared>, kind: Kind, name: Option<String>) -> Response {
    let events = shared.events.subscribe();
    let shared = Arc::clone(shared);
    let open = Open::new(&shared);
    let lines = futures::stream::unfold((events, open), |(mut events, open)| async {
        // What it misses it lists anew, as with the real one.
        let event = events.recv().await.ok()?;
        Some((event, (events, open)))
    });
    let lines = lines.filter_map(move |Changed { kind: of, name: own, line }| {
        let is_its = of == kind && name.as_ref().is_none_or(|name| *name == own);
        if is_its {
            shared.watched.fetch_add(line.len() as u64, Relaxed);
        }
        futures::future::ready(is_its.then_some(Ok::<_, Infallible>(line)))
    });
    ([(header::CONTENT_TYPE, JSON)], Body::from_stream(lines)).into_response()
}

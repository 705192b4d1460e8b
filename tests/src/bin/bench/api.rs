//! Lists and watches of an API server, for sizes that would take hours to fill into a real one.
//! Counts bytes. Everything else is tested against a real API server.

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

/// A kind of objects that clients list and watch.
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

    /// The kind of a list of these objects.
    fn list(self) -> &'static str {
        match self {
            Self::Services => "ServiceList",
            Self::Slices => "EndpointSliceList",
            Self::Nodes => "NodeList",
        }
    }
}

/// A change for the watches.
#[derive(Clone, Debug)]
struct Changed {
    kind: Kind,
    name: String,
    line: Bytes,
}

/// The server; dropping it ends it.
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
    /// The last resource version; lists have the first.
    version: AtomicU64,
    watches: AtomicUsize,
    listed: AtomicU64,
    watched: AtomicU64,
    /// When the last page was sent.
    finished: Mutex<Instant>,
}

impl Server {
    /// Serves a population in a network namespace; `form` converts each listed object.
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
                // Like servers written in Go: events are sent at once.
                let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
                tokio::select! {
                    served = axum::serve(listener, router) => served,
                    // The sender never sends; it was dropped.
                    _ = ended => Ok(()),
                }
            })
        });
        Ok(Self { address, shared, _end: end })
    }

    pub(crate) fn watches(&self) -> usize {
        self.shared.watches.load(Relaxed)
    }

    /// Bytes sent so far for lists, and for watches.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        (self.shared.listed.load(Relaxed), self.shared.watched.load(Relaxed))
    }

    /// When the last page of a list was sent.
    pub(crate) fn finished(&self) -> Instant {
        *self.shared.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a changed object to every watch, with a new resource version.
    pub(crate) fn modify(&self, kind: Kind, mut object: Value) {
        let version = self.shared.version.fetch_add(1, Relaxed) + 1;
        object["metadata"]["resourceVersion"] = version.to_string().into();
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let line = format!("{{\"type\":\"MODIFIED\",\"object\":{object}}}\n").into();
        // Fails if no watch is open.
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

/// `v1` for `/api/v1/nodes`, `discovery.k8s.io/v1` for `/apis/discovery.k8s.io/v1/endpointslices`.
fn version(path: &str) -> &str {
    let path = path.strip_prefix("/apis/").or(path.strip_prefix("/api/")).unwrap_or(path);
    path.rsplit_once('/').map_or(path, |(version, _)| version)
}

/// The requested name; clients here select by no other field.
fn selected(query: &BTreeMap<String, String>) -> Option<String> {
    query.get("fieldSelector")?.strip_prefix("metadata.name=").map(str::to_owned)
}

fn page(shared: &Shared, kind: Kind, path: &str, query: &BTreeMap<String, String>) -> Response {
    let number = |key: &str| query.get(key).and_then(|text| text.parse::<u32>().ok());
    let population = &shared.population;
    // Slices are counted by Service, so a page is a number of Services.
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

/// Counts an open watch.
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
        // A client that lags behind lists again, as with a real server.
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

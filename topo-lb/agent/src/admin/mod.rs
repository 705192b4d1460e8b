//! What the agent reports over HTTP. Read-only: no request changes anything.
//!
//! Each listener has a thread of its own: a scrape costs the agent task no time, a stuck
//! owner is still reported, and a flood at one listener does not slow another one down.
//!
//! | file | idea |
//! |---|---|
//! | `socket` | the Unix socket for probes |
//! | `answers` | the handler of each path |
//! | `explain` | the answer that can be long |
//! | `probe` | the client: `topo-lb probe` |

pub(crate) mod answers;
mod explain;
pub mod probe;
mod socket;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use tokio::sync::{Semaphore, watch};
use tracing::warn;

use crate::metrics::Figures;
use crate::readiness::Readiness;
use crate::state_query::StateQueryHandle;
use crate::{
    serve::Listen, serve::descriptors, serve::door, serve::listen, serve::run, serve::waiting,
};
use topo_lb_core::flag::{LISTEN, METRICS_LISTEN};
use topo_lb_core::topology::Scope;
use topo_lb_kernel::observe::Observed;

pub use socket::SocketFile;

/// What answers are computed from.
#[derive(Debug)]
pub struct Sources {
    /// This node.
    pub node: Arc<str>,
    /// Which Services are handled.
    pub scope: Scope,
    /// The folder of the pinned maps.
    pub pin_dir: PathBuf,
    /// What the agent counts.
    pub figures: Arc<Figures>,
    /// What happens to connections while the agent only observes; `None` if it translates.
    pub observed: Option<Arc<Observed>>,
    /// The agent's readiness.
    pub readiness: watch::Receiver<Readiness>,
    /// Sends queries to the agent task.
    pub state_query: StateQueryHandle,
}

/// The sources, and what handlers share.
struct Admin {
    sources: Sources,
    /// What scrapes keep; locked by one scrape at a time.
    remembered: Arc<Mutex<answers::Remembered>>,
    /// When the last scrape began, and its text.
    scraped: tokio::sync::Mutex<Option<(Instant, Bytes)>>,
    /// Permits one long answer that holds the state.
    long: Arc<Semaphore>,
}

/// Deadline until an answer begins.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is served at which address.
#[derive(Clone, Debug)]
pub struct Options {
    /// Serves every path.
    pub listen: Listen,
    /// Serves only `/metrics`.
    pub metrics_listen: Listen,
    /// A Unix socket that serves only the probes.
    pub probe_socket: Option<PathBuf>,
    /// Most Service ports with metrics of their own.
    pub metrics_services: usize,
}

/// Serves until the process ends. Retries addresses that it cannot bind, as translation does not
/// depend on HTTP. Returns the file of the probe socket, to be removed at the end.
///
/// # Errors
/// A thread cannot be created.
pub fn start(options: &Options, sources: Sources) -> std::io::Result<SocketFile> {
    let admin = Arc::new(Admin::new(sources, options.metrics_services));
    let waiting = waiting(descriptors());
    let file = SocketFile::default();
    if let Some(path) = options.probe_socket.clone() {
        let (router, file) = (router(&admin, PROBES), file.clone());
        run("probes", async move {
            let rooms = door::Rooms::new(waiting);
            door::serve(socket::bind(&path, &file).await, router, rooms).await;
        })?;
    }
    let mut metrics_listen = options.metrics_listen;
    if options.listen.excludes(metrics_listen) {
        warn!(
            "{METRICS_LISTEN} {metrics_listen} is not served: {LISTEN} {} has that port; give \
             {METRICS_LISTEN} another port",
            options.listen
        );
        metrics_listen = Listen::Off;
    }
    let listeners = [
        ("http", LISTEN, options.listen, PATHS),
        ("metrics", METRICS_LISTEN, metrics_listen, METRICS),
    ];
    for (name, flag, listen, paths) in listeners {
        let Listen::On(address) = listen else { continue };
        let router = router(&admin, paths);
        run(name, async move {
            let rooms = door::Rooms::new(waiting);
            door::serve(listen::bind(address, flag).await, router, rooms).await;
        })?;
    }
    Ok(file)
}

/// Every path; the 404 answer lists them.
const PATHS: &[&str] = &["/metrics", "/healthz", "/livez", "/readyz", "/explain", "/state"];
/// The paths for a kubelet.
const PROBES: &[&str] = &["/healthz", "/livez", "/readyz"];
/// The paths for Prometheus.
const METRICS: &[&str] = &["/metrics"];

impl Admin {
    fn new(sources: Sources, metrics_services: usize) -> Self {
        Self {
            remembered: Arc::new(Mutex::new(answers::Remembered::at_start(
                &sources.pin_dir,
                metrics_services,
                sources.observed.is_some(),
            ))),
            sources,
            scraped: tokio::sync::Mutex::default(),
            long: Arc::new(Semaphore::new(1)),
        }
    }
}

/// Routes these paths; answers all others with a sentence.
fn router(admin: &Arc<Admin>, paths: &'static [&str]) -> Router {
    let with_path = |router: Router<Arc<Admin>>, &path: &&str| {
        let answer = match path {
            "/metrics" => get(answers::metrics),
            "/readyz" => get(answers::ready),
            "/explain" => get(explain::answer),
            "/state" => get(answers::state),
            _ => get(answers::alive),
        };
        router.route(path, answer)
    };
    paths
        .iter()
        .fold(Router::new(), with_path)
        .fallback(async move |request: Request| {
            let paths = paths.join(", ");
            let path = request.uri().path();
            plain(StatusCode::NOT_FOUND, format!("there is no {path:?}: the paths are {paths}"))
        })
        .method_not_allowed_fallback(async || {
            plain(
                StatusCode::METHOD_NOT_ALLOWED,
                "nothing can be changed over HTTP: use GET".into(),
            )
        })
        .layer(middleware::from_fn(in_time))
        .with_state(Arc::clone(admin))
}

async fn in_time(request: Request, next: Next) -> Response {
    match tokio::time::timeout(PATIENCE, next.run(request)).await {
        Ok(response) => response,
        Err(_) => plain(
            StatusCode::SERVICE_UNAVAILABLE,
            format!("there was no answer within {} s", PATIENCE.as_secs()),
        ),
    }
}

fn plain(status: StatusCode, sentence: String) -> Response {
    (status, format!("{}\n", sentence.trim_end())).into_response()
}

#[cfg(test)]
mod tests;

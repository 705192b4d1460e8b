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
//! | `shared` | what the handlers share |
//! | `probe` | the client: `topo-lb probe` |

pub(crate) mod answers;
mod explain;
pub mod probe;
mod shared;
mod socket;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::routing::get;
use tracing::warn;

use crate::{
    serve::Listen, serve::descriptors, serve::door, serve::listen, serve::run, serve::waiting,
};
use topo_lb_core::flag::{LISTEN, METRICS_LISTEN};

use shared::{Admin, plain};

pub use shared::Sources;
pub use socket::SocketFile;

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
const PATHS: &[&str] =
    &["/metrics", "/healthz", "/livez", "/readyz", "/explain", "/peers", "/state"];
/// The paths for a kubelet.
const PROBES: &[&str] = &["/healthz", "/livez", "/readyz"];
/// The paths for Prometheus.
const METRICS: &[&str] = &["/metrics"];

/// Routes these paths; answers all others with a sentence.
fn router(admin: &Arc<Admin>, paths: &'static [&str]) -> Router {
    let with_path = |router: Router<Arc<Admin>>, &path: &&str| {
        let answer = match path {
            "/metrics" => get(answers::metrics),
            "/readyz" => get(answers::ready),
            "/explain" => get(explain::answer),
            "/peers" => get(answers::peers),
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

#[cfg(test)]
mod tests;

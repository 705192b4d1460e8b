//! What the agent says of itself over HTTP. It only reads: nothing can be changed this way.
//!
//! It runs on a thread of its own, so that a scrape costs the owner of the state no time, and so that
//! an owner that is stuck can be told of.
//!
//! | file | idea |
//! |---|---|
//! | `listen` | the address, and how many connections it bears |
//! | `answers` | one answer for each path |
//! | `explain` | the answer that can be long |

mod answers;
mod explain;
mod listen;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Router, serve};
use tokio::sync::{Semaphore, watch};

use crate::inquiry::Desk;
use crate::metrics::Figures;
use crate::readiness::Readiness;
use crate::topology::Scope;

pub use listen::{Listen, ListenError};

/// What answers are made of.
#[derive(Debug)]
pub struct Sources {
    /// This node.
    pub node: Arc<str>,
    /// Which Services are handled.
    pub scope: Scope,
    /// Where the maps are pinned.
    pub pin_dir: PathBuf,
    /// What the agent counts.
    pub figures: Arc<Figures>,
    /// How ready it is.
    pub readiness: watch::Receiver<Readiness>,
    /// Where the owner of the state is asked.
    pub desk: Desk,
}

/// The same, and what answers have in common.
struct Admin {
    sources: Sources,
    /// What scrapes remember from one to the next; one at a time.
    remembered: Arc<Mutex<answers::Remembered>>,
    /// Answers that hold the state and take long; one at a time.
    long: Arc<Semaphore>,
}

/// How long an answer may take to begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves from now on, until the process ends, on a thread of its own. An address that cannot be
/// had is waited for: what the agent is for does not depend on being looked at.
///
/// # Errors
/// There is no thread to be had.
pub fn start(listen: Listen, sources: Sources) -> std::io::Result<()> {
    let Listen::On(address) = listen else { return Ok(()) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(4)
        .build()?;
    let router = router(sources);
    std::thread::Builder::new().name("http".to_owned()).spawn(move || {
        runtime.block_on(async {
            let listener = listen::bind(address).await;
            // It never ends; what goes wrong with one connection ends that one.
            let _ = serve(listener, router).await;
        });
    })?;
    Ok(())
}

/// Every path, for those who ask for another.
const PATHS: [&str; 6] = ["/metrics", "/healthz", "/livez", "/readyz", "/explain", "/state"];

fn router(sources: Sources) -> Router {
    let admin =
        Arc::new(Admin { sources, remembered: Arc::default(), long: Arc::new(Semaphore::new(1)) });
    Router::new()
        .route("/metrics", get(answers::metrics))
        .route("/healthz", get(answers::alive))
        .route("/livez", get(answers::alive))
        .route("/readyz", get(answers::ready))
        .route("/explain", get(explain::answer))
        .route("/state", get(answers::state))
        .fallback(async |request: Request| {
            let paths = PATHS.join(", ");
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
        .with_state(admin)
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

/// A sentence.
fn plain(status: StatusCode, sentence: String) -> Response {
    (status, format!("{}\n", sentence.trim_end())).into_response()
}

#[cfg(test)]
mod tests;

//! Requests to the API servers of a cluster: the first that can be reached, with its current route and
//! credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::kube::Client;
use ::kube::client::{Body, ClientBuilder};
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use tower::{BoxError, service_fn};
use tracing::info;

use super::error;
use super::order::Order;
use super::timing::Timing;
use super::upstream::Upstream;
use super::watch_health::{Open, WatchHealth};
use crate::source::object::Kind;
use topo_lb_core::cluster::Update;

/// The API servers of one cluster, in order, and the health of its watches. Clones share all of it.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) timing: Timing,
    pub(super) watch_health: WatchHealth,
    /// At least one.
    upstreams: Arc<[Upstream]>,
    state: Arc<Mutex<State>>,
}

struct State {
    order: Order,
    /// The pauses that the last answers asked for, by kind.
    retry_after: BTreeMap<Kind, Duration>,
}

impl Session {
    pub(super) fn new(upstreams: Vec<Upstream>, timing: Timing) -> Self {
        let order = Order::new(upstreams.len(), timing.back, Instant::now());
        let state = Arc::new(Mutex::new(State { order, retry_after: BTreeMap::new() }));
        let watch_health = WatchHealth::new(timing.grace);
        Self { timing, watch_health, upstreams: upstreams.into(), state }
    }

    /// Updates the routes to all servers.
    pub(super) fn observe(&self, update: &Update) {
        self.upstreams.iter().for_each(|it| it.routes.observe(update));
    }

    /// A client for requests by this session.
    pub(super) fn client(&self) -> Client {
        let session = self.clone();
        let service = service_fn(move |request: Request<Body>| {
            let session = session.clone();
            async move {
                let (response, watch) = session.exchange(request).await?;
                Ok::<_, BoxError>(response.map(|body| {
                    body.map_frame(move |frame| {
                        watch.iter().for_each(Open::heard);
                        frame
                    })
                }))
            }
        });
        ClientBuilder::new(service, "default").build()
    }

    /// Sends a request. For a watch that begins, also returns the guard of its health.
    async fn exchange(
        &self,
        request: Request<Body>,
    ) -> Result<(Response<Body>, Option<Open>), ::kube::Error> {
        let kind = kind(request.uri());
        let watched = kind.filter(|_| is_watch(request.uri()));
        let answer = self.send(request).await;
        if let Some(kind) = kind {
            let wait = answer.as_ref().ok().and_then(retry_after);
            let all = &mut self.lock().retry_after;
            let _ = match wait {
                Some(wait) => all.insert(kind, wait),
                None => all.remove(&kind),
            };
        }
        let response = answer?;
        let began = watched.filter(|_| response.status().is_success());
        Ok((response, began.map(|kind| self.watch_health.open(kind))))
    }

    /// Sends a request to the first server that can be reached.
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, ::kube::Error> {
        let (parts, body) = request.into_parts();
        // Requests are small; answers are not.
        let body = body.collect().await?.to_bytes().to_vec();
        let (first, others) = self.lock().order.next(Instant::now());
        let ask = async |place: usize| {
            let request = Request::from_parts(parts.clone(), body.clone().into());
            self.ask(place, request).await
        };
        let failure = match ask(first).await {
            Ok(response) => return Ok(response),
            Err(failure) => failure,
        };
        for place in others {
            if let Ok(response) = ask(place).await {
                return Ok(response);
            }
        }
        Err(failure)
    }

    async fn ask(
        &self,
        place: usize,
        request: Request<Body>,
    ) -> Result<Response<Body>, ::kube::Error> {
        let upstream = &self.upstreams[place];
        let answer = upstream.client().send(request).await;
        match &answer {
            Ok(response) => {
                if response.status() == StatusCode::UNAUTHORIZED {
                    upstream.renew().await;
                }
                if self.lock().order.answered(place) {
                    info!("the API server at {} is asked from now on", upstream.url);
                }
            }
            Err(failure) => {
                upstream.routes.turn(Instant::now());
                if error::is_insecure(failure) {
                    // A client certificate may have expired.
                    upstream.renew().await;
                }
            }
        }
        answer
    }

    /// How long the last answer about `kind` asks to wait before the next request.
    pub(super) fn retry_after(&self, kind: Kind) -> Option<Duration> {
        self.lock().retry_after.get(&kind).copied()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|it| it == "watch=true"))
}

/// The kind that this request is about; `None` for others.
fn kind(uri: &Uri) -> Option<Kind> {
    match uri.path().trim_end_matches('/').rsplit('/').next()? {
        "nodes" => Some(Kind::Node),
        "endpointslices" => Some(Kind::Slice),
        "services" => Some(Kind::Service),
        "namespaces" => Some(Kind::Namespace),
        "topologypolicies" => Some(Kind::TopologyPolicy),
        "clustertopologypolicies" => Some(Kind::ClusterTopologyPolicy),
        _ => None,
    }
}

/// The pause that a refusal asks for, in seconds as Kubernetes sends it; dates are ignored.
fn retry_after(response: &Response<Body>) -> Option<Duration> {
    let is_refusal = matches!(
        response.status(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
    );
    let value = response.headers().get(RETRY_AFTER).filter(|_| is_refusal)?;
    value.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests;

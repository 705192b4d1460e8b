//! Requests to an API server with the current route and credentials.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ::kube::Client;
use ::kube::client::{Body, ClientBuilder, ConfigExt as _};
use ::kube::config::Config;
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode, Uri};
use http_body_util::BodyExt as _;
use hyper_timeout::TimeoutConnector;
use hyper_util::rt::TokioExecutor;
use tower::{BoxError, ServiceBuilder, service_fn};

use super::backoff::random;
use super::bootstrap::Routes;
use super::dial::Dial;
use super::target::{KubeTarget, config, url};
use super::timing::Timing;
use super::watch_health::{Open, WatchHealth};
use super::{KubeError, error};
use crate::source::object::Kind;

/// One API server: routes, credentials, and the health of its watches. Clones share all of it.
#[derive(Clone)]
pub(super) struct Session {
    target: KubeTarget,
    pub(super) timing: Timing,
    pub(super) routes: Routes,
    pub(super) watch_health: WatchHealth,
    current: Arc<Mutex<Current>>,
}

/// The pauses that the last answers asked for, by kind.
type RetryAfter = BTreeMap<Kind, Duration>;

struct Current {
    /// Has the credentials of its creation; a ServiceAccount's token is read again every minute.
    client: Client,
    made: Instant,
    retry_after: RetryAfter,
}

impl Session {
    pub(super) fn new(
        target: KubeTarget,
        timing: Timing,
        config: Config,
    ) -> Result<Self, KubeError> {
        let server = &config.cluster_url;
        let default = if server.scheme_str() == Some("http") { 80 } else { 443 };
        let routes = Routes::new(
            server.host().unwrap_or_default(),
            server.port_u16().unwrap_or(default),
            random(),
        );
        let client = plain_client(config, &timing, &routes)?;
        let current = Arc::new(Mutex::new(Current {
            client,
            made: Instant::now(),
            retry_after: RetryAfter::new(),
        }));
        Ok(Self { target, timing, routes, watch_health: WatchHealth::new(timing.grace), current })
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
        let client = self.lock().client.clone();
        let answer = client.send(request).await;
        if let Some(kind) = kind {
            let wait = answer.as_ref().ok().and_then(retry_after);
            let all = &mut self.lock().retry_after;
            let _ = match wait {
                Some(wait) => all.insert(kind, wait),
                None => all.remove(&kind),
            };
        }
        match answer {
            Ok(response) if response.status() == StatusCode::UNAUTHORIZED => {
                self.renew().await;
                Ok((response, None))
            }
            Ok(response) => {
                let began = watched.filter(|_| response.status().is_success());
                Ok((response, began.map(|kind| self.watch_health.open(kind))))
            }
            Err(failure) => {
                self.routes.turn(Instant::now());
                if error::is_insecure(&failure) {
                    // A client certificate may have expired.
                    self.renew().await;
                }
                Err(failure)
            }
        }
    }

    /// How long the last answer about `kind` asks to wait before the next request.
    pub(super) fn retry_after(&self, kind: Kind) -> Option<Duration> {
        self.lock().retry_after.get(&kind).copied()
    }

    /// Reads the credentials again, for the next requests.
    async fn renew(&self) {
        if self.lock().made.elapsed() < self.timing.renewal {
            return;
        }
        let config = config(&self.target).await;
        match config.and_then(|config| plain_client(config, &self.timing, &self.routes)) {
            Ok(client) => {
                let mut current = self.lock();
                (current.client, current.made) = (client, Instant::now());
            }
            Err(error) => tracing::debug!("the credentials stay as they are: {error}"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // No code panics while it holds the lock.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Like [`Client::try_from`], but connects by `routes`.
fn plain_client(mut config: Config, timing: &Timing, routes: &Routes) -> Result<Client, KubeError> {
    config.connect_timeout = Some(timing.connect);
    config.read_timeout = Some(timing.read);
    config.reset_reader_on_write = true;
    let server = url(&config);
    let client = if config.proxy_url.is_some() {
        // A configured proxy is the only way.
        Client::try_from(config)
    } else {
        build(&config, routes)
    };
    client.map_err(|error| KubeError::Client { url: server, reason: error.to_string() })
}

fn build(config: &Config, routes: &Routes) -> ::kube::Result<Client> {
    let https = config.rustls_https_connector_with_connector(Dial::new(routes.clone()))?;
    let mut connector = TimeoutConnector::new(https);
    connector.set_connect_timeout(config.connect_timeout);
    connector.set_read_timeout(config.read_timeout);
    connector.set_write_timeout(config.write_timeout);
    connector.set_reset_reader_on_write(config.reset_reader_on_write);
    let client: hyper_util::client::legacy::Client<_, Body> =
        hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service, &*config.default_namespace).build())
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

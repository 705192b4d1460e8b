//! One of the API servers of a session: its routes and credentials.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use ::kube::Client;
use ::kube::client::{Body, ClientBuilder, ConfigExt as _};
use ::kube::config::Config;
use hyper_timeout::TimeoutConnector;
use hyper_util::rt::TokioExecutor;
use tower::{BoxError, ServiceBuilder};

use super::backoff::random;
use super::bootstrap::Routes;
use super::dial::Dial;
use super::error::KubeError;
use super::target::{KubeTarget, config, url};
use super::timing::Timing;

/// Most bytes that a connection reads at once. A watch keeps the buffer in which it read its list, which
/// would otherwise grow to 400 kB.
const LONGEST_READ: usize = 1 << 16;

/// An API server.
pub(super) struct Upstream {
    target: KubeTarget,
    timing: Timing,
    /// For messages.
    pub(super) url: String,
    pub(super) routes: Routes,
    current: Mutex<Current>,
}

struct Current {
    /// Has the credentials of its creation; a ServiceAccount's token is read again every minute.
    client: Client,
    made: Instant,
}

impl Upstream {
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
        let url = url(&config);
        let client = plain_client(config, &timing, &routes)?;
        let current = Mutex::new(Current { client, made: Instant::now() });
        Ok(Self { target, timing, url, routes, current })
    }

    pub(super) fn client(&self) -> Client {
        self.lock().client.clone()
    }

    /// Reads the credentials again, for the next requests.
    pub(super) async fn renew(&self) {
        if self.lock().made.elapsed() < self.timing.renewal {
            return;
        }
        let config = config(&self.target).await;
        match config.and_then(|config| plain_client(config, &self.timing, &self.routes)) {
            Ok(client) => *self.lock() = Current { client, made: Instant::now() },
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
        hyper_util::client::legacy::Client::builder(TokioExecutor::new())
            .http1_max_buf_size(LONGEST_READ)
            .build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(client);
    Ok(ClientBuilder::new(service, &*config.default_namespace).build())
}

//! The API server's address and credentials.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use serde::{Deserialize, Serialize};

use super::KubeError;
use super::session::Session;
use super::watch_health::WatchHealth;
use crate::cluster::Update;
use crate::source::object::Kind;

/// How to find the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeTarget {
    /// The current context of this kubeconfig.
    Kubeconfig(PathBuf),
    /// This URL, without credentials: `http://host:port`.
    Server(String),
    /// The cluster of this Pod; outside of a Pod, `$KUBECONFIG`.
    Inferred,
}

/// Identifies a cluster as far as possible without a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The URL of the API server.
    pub server: String,
    /// CRC-32 of each trusted authority's certificate; empty without TLS or with the system's.
    pub authorities: Vec<u32>,
}

impl Identity {
    /// Whether they share an authority, which no two clusters do; if either has none, the URL.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        if self.authorities.is_empty() || other.authorities.is_empty() {
            return self.server == other.server;
        }
        // One common authority suffices: they are renewed one by one.
        self.authorities.iter().any(|one| other.authorities.contains(one))
    }
}

/// An API server. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Server {
    client: ::kube::Client,
    session: Session,
    identity: Identity,
}

impl Server {
    /// A client for other requests to the same server.
    #[must_use]
    pub fn client(&self) -> ::kube::Client {
        self.client.clone()
    }

    /// Its URL, for messages.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.identity.server
    }

    /// The identity of its cluster.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Updates the routes to the server from saved objects: `default/kubernetes` and its slices.
    pub fn observe(&self, update: &Update) {
        self.session.routes.observe(update);
    }

    pub(super) const fn watch_health(&self) -> &WatchHealth {
        &self.session.watch_health
    }

    /// How long the server's last answer about `kind` asks to wait before the next request.
    pub(super) fn retry_after(&self, kind: Kind) -> Option<Duration> {
        self.session.retry_after(kind)
    }

    pub(super) const fn timing(&self) -> &Timing {
        &self.session.timing
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.url()).finish()
    }
}

/// Time limits; shorter in tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Time limit for a connection, including all routes and TLS.
    pub(super) connect: Duration,
    /// Longest silence of a connection. Bookmarks come about every minute. Without them (the server
    /// sends none, or no object changed since its start) the watch resumes on another connection.
    pub(super) read: Duration,
    /// Failures that a server may fix by itself are reported only after this time: a freshly
    /// started server knows no roles yet and answers 403. Longer after the server has served.
    pub(super) settling: Duration,
    /// A watch that is closed for less than this still counts as open.
    pub(super) grace: Duration,
    /// Shortest interval between readings of the credentials.
    pub(super) renewal: Duration,
}

impl Timing {
    pub(super) const DEFAULT: Self = Self {
        connect: Duration::from_secs(20),
        read: Duration::from_secs(90),
        settling: Duration::from_secs(20),
        grace: Duration::from_secs(10),
        renewal: Duration::from_secs(5),
    };
}

/// Prepares requests to an API server; sends nothing yet.
///
/// # Errors
/// The server's address is unknown, or the credentials or settings are unusable.
pub async fn connect(target: &KubeTarget) -> Result<Server, KubeError> {
    connect_with(target, Timing::DEFAULT).await
}

pub(super) async fn connect_with(target: &KubeTarget, timing: Timing) -> Result<Server, KubeError> {
    let config = config(target).await?;
    let server = url(&config);
    let authorities = config.root_cert.iter().flatten().map(|one| crc32fast::hash(one)).collect();
    let session = Session::new(target.clone(), timing, config)?;
    Ok(Server { client: session.client(), session, identity: Identity { server, authorities } })
}

/// The configuration for `target`, with the current credentials.
pub(super) async fn config(target: &KubeTarget) -> Result<Config, KubeError> {
    match target {
        KubeTarget::Kubeconfig(path) => {
            let wrong =
                |error| KubeError::Kubeconfig { path: path.clone(), reason: reason(&error) };
            from(Kubeconfig::read_from(path).map_err(wrong)?).await.map_err(wrong)
        }
        KubeTarget::Server(url) => plain(url),
        KubeTarget::Inferred => inferred().await,
    }
}

pub(super) fn url(config: &Config) -> String {
    config.cluster_url.to_string().trim_end_matches('/').to_owned()
}

async fn from(kubeconfig: Kubeconfig) -> Result<Config, KubeconfigError> {
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await
}

fn plain(url: &str) -> Result<Config, KubeError> {
    let wrong = || KubeError::Url(url.to_owned());
    let Ok(parsed) = url.parse() else {
        return Err(wrong());
    };
    let config = Config::new(parsed);
    match (config.cluster_url.scheme_str(), config.cluster_url.host()) {
        (Some("http" | "https"), Some(_)) => Ok(config),
        _ => Err(wrong()),
    }
}

async fn inferred() -> Result<Config, KubeError> {
    if env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        return Config::incluster().map_err(|error| KubeError::InCluster(error.to_string()));
    }
    let Some(paths) = env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty()) else {
        return Err(KubeError::Nowhere);
    };
    let wrong = |error| KubeError::Kubeconfig { path: paths.into(), reason: reason(&error) };
    let kubeconfig = match Kubeconfig::from_env() {
        Ok(Some(kubeconfig)) => kubeconfig,
        Ok(None) => return Err(KubeError::Nowhere),
        Err(error) => return Err(wrong(error)),
    };
    from(kubeconfig).await.map_err(wrong)
}

/// Without the path, which the message already has.
fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(source, _) => source.to_string(),
        error => error.to_string(),
    }
}

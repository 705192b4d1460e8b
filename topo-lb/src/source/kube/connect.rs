//! Which API server, and how to speak to it.

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

/// Where the API server is said to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeTarget {
    /// The current context of this kubeconfig.
    Kubeconfig(PathBuf),
    /// This URL, without credentials: `http://host:port`.
    Server(String),
    /// The cluster whose Pod this is; outside of any, what `$KUBECONFIG` says.
    Inferred,
}

/// Whose objects an API server has, as far as that can be told without asking it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Its URL.
    pub server: String,
    /// CRC-32 of each certificate of the authorities that are trusted to speak for it; none where it
    /// is spoken to without TLS, or where those of the system are trusted.
    pub authorities: Vec<u32>,
}

impl Identity {
    /// Whether these are one cluster: by a common authority, which no two clusters have, or, where
    /// one of them has none, by the URL.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        if self.authorities.is_empty() || other.authorities.is_empty() {
            return self.server == other.server;
        }
        // Authorities are renewed one by one.
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
    /// For other requests to the same server.
    #[must_use]
    pub fn client(&self) -> ::kube::Client {
        self.client.clone()
    }

    /// Its URL, for people.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.identity.server
    }

    /// Whose objects it has.
    #[must_use]
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Has it learn where the server is, from what was saved: `default/kubernetes` and its slices.
    pub fn observe(&self, update: &Update) {
        self.session.routes.observe(update);
    }

    pub(super) const fn watch_health(&self) -> &WatchHealth {
        &self.session.watch_health
    }

    /// How long the server wants the next request about `kind` to wait, if it said so last.
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

/// How long things may take; shorter in tests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Longest wait for a connection, with all its routes and TLS.
    pub(super) connect: Duration,
    /// Longest silence of the server before a connection counts as dead. Bookmarks come about every
    /// minute; where they do not, because nothing of a kind has changed since the server was started or
    /// because it does not send any, the watch goes on by another connection from where it was.
    pub(super) read: Duration,
    /// What a server may be expected to mend by itself is said when it lasts for longer: one that was
    /// just started knows no roles yet, and answers 403. Longer for one that has served before.
    pub(super) settling: Duration,
    /// A watch that is closed for less than this is no news.
    pub(super) grace: Duration,
    /// Credentials are not read anew more often.
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

/// Gets ready to speak to an API server; nothing is sent yet.
///
/// # Errors
/// When it is not known where the server is, or how to speak to it.
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

/// How to speak to `target`, with credentials as they are now.
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

/// For people.
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

/// Without the path, which the sentence names already.
fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(source, _) => source.to_string(),
        error => error.to_string(),
    }
}

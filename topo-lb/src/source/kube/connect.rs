//! Which API server, and how to speak to it.

use std::env;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ::kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::KubeError;

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

/// An API server. Cheap to clone; clones share connections.
#[derive(Clone)]
pub struct Server {
    client: ::kube::Client,
    url: String,
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
        &self.url
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.url).finish()
    }
}

/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest silence of the server before a connection counts as dead: a little longer than any
/// watch lasts.
const READ_TIMEOUT: Duration = Duration::from_secs(180);

/// Gets ready to speak to an API server; nothing is sent yet.
///
/// # Errors
/// When it is not known where the server is, or how to speak to it.
pub async fn connect(target: &KubeTarget) -> Result<Server, KubeError> {
    let mut config = match target {
        KubeTarget::Kubeconfig(path) => {
            let wrong =
                |error| KubeError::Kubeconfig { path: path.clone(), reason: reason(&error) };
            from(Kubeconfig::read_from(path).map_err(wrong)?).await.map_err(wrong)?
        }
        KubeTarget::Server(url) => plain(url)?,
        KubeTarget::Inferred => inferred().await?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.reset_reader_on_write = true;
    let url = config.cluster_url.to_string().trim_end_matches('/').to_owned();
    match ::kube::Client::try_from(config) {
        Ok(client) => Ok(Server { client, url }),
        Err(error) => Err(KubeError::Client { url, reason: error.to_string() }),
    }
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

//! Where the API server is, and which credentials it wants.

use std::env;
use std::path::PathBuf;

use ::kube::config::{Config, KubeConfigOptions, Kubeconfig, KubeconfigError};

use super::error::KubeError;

/// How to find the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KubeTarget {
    /// The current context of this kubeconfig.
    Kubeconfig(PathBuf),
    /// This URL, without credentials: `http://host:port`.
    Server(String),
    /// The cluster of this Pod; outside of a Pod, `$KUBECONFIG`.
    Inferred,
    /// Several servers of one cluster: the first that can be reached is asked. None of them is several.
    InOrder(Vec<Self>),
}

impl KubeTarget {
    /// The servers, in order.
    pub(super) fn each(&self) -> &[Self] {
        match self {
            Self::InOrder(all) => all,
            one => std::slice::from_ref(one),
        }
    }

    /// Those that get credentials, and so may be written to; `None`: no server.
    #[must_use]
    pub fn with_credentials(&self) -> Option<Self> {
        let all = self.each().iter().filter(|it| !matches!(it, Self::Server(_)));
        let mut all: Vec<_> = all.cloned().collect();
        match all.len() {
            0 => None,
            1 => all.pop(),
            _ => Some(Self::InOrder(all)),
        }
    }
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
        // Each has a configuration of its own.
        KubeTarget::InOrder(_) => Err(KubeError::Nowhere),
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

/// Without the path, which the sentence names already.
fn reason(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(source, _) => source.to_string(),
        error => error.to_string(),
    }
}

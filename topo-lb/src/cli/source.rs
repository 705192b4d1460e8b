//! Where the cluster is described: flags of several commands.

use std::env;
use std::path::{Path, PathBuf};

use clap::Args;

use super::name;
use topo_lb_kube::source::kube::KubeTarget;

/// In place of a URL: the API server of this Pod.
const IN_CLUSTER: &str = "in-cluster";

/// Where the cluster is described.
#[derive(Debug, Args)]
#[group(id = "source", multiple = false)]
pub struct SourceArgs {
    /// File or folder of YAML or JSON manifests. The agent follows their changes; other commands read them
    /// once, and take `-` for standard input
    #[arg(long, value_name = "PATH", env = "TOPO_LB_MANIFESTS")]
    pub manifests: Option<PathBuf>,
    /// Kubeconfig file. Without any source: the in-cluster config, then $KUBECONFIG
    #[arg(long, value_name = "PATH", env = "TOPO_LB_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of an API server that needs no credentials, such as an edge node's cache. Several, separated
    /// by commas: the first that can be reached is asked, and the first of all again once a minute.
    /// `in-cluster` is that of this Pod, with its credentials
    #[arg(long, value_name = "URL", env = "TOPO_LB_API_SERVER", value_delimiter = ',')]
    pub api_server: Vec<String>,
}

impl SourceArgs {
    /// The API server, for a source that is no manifests.
    #[must_use]
    pub fn target(&self) -> KubeTarget {
        kube_target(self.kubeconfig.as_deref(), &self.api_server)
    }
}

/// The API server that flags name. Without any, that of the cluster around this process, or kubectl's own.
#[must_use]
pub fn kube_target(kubeconfig: Option<&Path>, api_servers: &[String]) -> KubeTarget {
    let server = |text: &String| match text.as_str() {
        IN_CLUSTER => KubeTarget::Inferred,
        url => KubeTarget::Server(url.to_owned()),
    };
    match (kubeconfig, api_servers) {
        (Some(path), _) => KubeTarget::Kubeconfig(path.to_owned()),
        (None, []) => kubectls_own().map_or(KubeTarget::Inferred, KubeTarget::Kubeconfig),
        (None, [one]) => server(one),
        (None, several) => KubeTarget::InOrder(several.iter().map(server).collect()),
    }
}

/// As a plugin: `~/.kube/config`, which kubectl reads, unless KUBECONFIG names others.
fn kubectls_own() -> Option<PathBuf> {
    let others = env::var_os("KUBECONFIG").filter(|paths| !paths.is_empty());
    if !name::is_plugin() || others.is_some() {
        return None;
    }
    Some(env::home_dir()?.join(".kube/config")).filter(|path| path.is_file())
}

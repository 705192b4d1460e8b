//! What the agent is to do.

use std::path::PathBuf;
use std::sync::Arc;

use crate::admin;
use crate::datapath::Options;
use crate::datapath::inspect::overridden::Tolerated;
use crate::device::Pattern;
use crate::exclusion::Rules;
use crate::plan::WhenFull;
use crate::source::kube::KubeTarget;
use crate::topology::Scope;

/// Where the cluster is described.
#[derive(Clone, Debug)]
pub enum Source {
    /// Files, followed.
    Manifests(PathBuf),
    /// A Kubernetes API.
    Kube(KubeTarget),
}

/// What the agent is to do.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the cluster is described.
    pub source: Source,
    /// This node.
    pub node: Arc<str>,
    /// Where the state is saved, and started from while the source does not answer.
    pub state_dir: Option<PathBuf>,
    /// Which Services are handled.
    pub scope: Scope,
    /// Which Pods are left alone.
    pub exclusions: Rules,
    /// What becomes of Services that have no room in the maps.
    pub when_full: WhenFull,
    /// Devices whose packets are translated.
    pub devices: Vec<Pattern>,
    /// Programs of others that may run before ours.
    pub tolerated: Vec<Tolerated>,
    /// The hooks and the maps.
    pub datapath: Options,
    /// Where HTTP is served.
    pub admin: admin::Options,
    /// TCP sockets whose endpoint serves no more are ended, too.
    pub terminate_tcp: bool,
}

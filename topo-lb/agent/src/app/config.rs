//! The agent's configuration.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use ipnet::IpNet;

use crate::admin;
use crate::dns;
use crate::health;
use topo_lb_core::exclusion::Rules;
use topo_lb_core::plan::WhenFull;
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::exposed::Exposing;
use topo_lb_kernel::datapath::Options;
use topo_lb_kernel::datapath::inspect::tolerated::Tolerated;
use topo_lb_kernel::device::Pattern;
use topo_lb_kube::source::kube::KubeTarget;

/// The source of the cluster's state.
#[derive(Clone, Debug)]
pub enum Source {
    /// Manifest files; changes are followed.
    Manifests(PathBuf),
    /// A Kubernetes API.
    Kube(KubeTarget),
}

/// Who gives connections from outside to endpoints of other nodes a source of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum MasqueradeBy {
    /// The programs of tc, if one device leads to all other nodes and nobody else has rules for packets that
    /// the node forwards; otherwise nftables.
    #[default]
    Auto,
    /// The kernel, by the nftables table `inet topo-lb`. It tracks every connection of the node then.
    Nftables,
}

/// What the agent does in place of kube-proxy for clients outside of the node.
#[derive(Clone, Debug)]
pub struct Replacement {
    /// The devices by which they come in; empty: all with an address of the node.
    pub devices: Vec<Pattern>,
    /// The bit of packet marks that asks for masquerade.
    pub masquerade_mark: u32,
    /// Who masquerades.
    pub masquerade: MasqueradeBy,
}

/// The agent's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The source of the cluster's state.
    pub source: Source,
    /// This node.
    pub node: Arc<str>,
    /// Where the state is saved. The agent starts from it if the source does not answer.
    pub state_dir: Option<PathBuf>,
    /// How long the API server may be silent before the node is an island; `None`: for ever.
    pub island_after: Option<Duration>,
    /// Which Services are handled.
    pub scope: Scope,
    /// Ranges of the Pods' addresses, if somebody says them.
    pub pod_ranges: Vec<IpNet>,
    /// Which frontends besides ClusterIPs are handled; `None`: none.
    pub exposing: Option<Exposing>,
    /// Clients outside are served; `None`: they are left to kube-proxy.
    pub replacement: Option<Replacement>,
    /// Which Pods are excluded, and which are steered.
    pub exclusions: Rules,
    /// What happens to Services that have no room in the maps.
    pub when_full: WhenFull,
    /// Devices on which tc translates packets.
    pub devices: Vec<Pattern>,
    /// Foreign programs that may run before ours.
    pub tolerated: Vec<Tolerated>,
    /// The hooks and the maps.
    pub datapath: Options,
    /// Where HTTP is served.
    pub admin: admin::Options,
    /// Where health checks of load balancers are answered; `None`: nowhere.
    pub health: Option<health::Options>,
    /// The resolver; `None`: the agent has none.
    pub dns: Option<dns::Options>,
    /// Whether TCP sockets to gone endpoints are ended, too.
    pub terminate_tcp: bool,
}

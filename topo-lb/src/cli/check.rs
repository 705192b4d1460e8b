//! Flags of `topo-lb check`.

use std::path::PathBuf;

use clap::Args;

use super::frontends::DirectReturn;
use super::{CGROUP_ROOT, HealthzArgs, Output, PinArgs};
use topo_lb_kernel::datapath::inspect::tolerated::Tolerated;
use topo_lb_kernel::device::Pattern;

/// `topo-lb check`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// The cgroup (v2) that the agent would use
    #[arg(long, value_name = "PATH", env = "TOPO_LB_CGROUP_ROOT", default_value = CGROUP_ROOT)]
    pub cgroup_root: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: PinArgs says what it is")]
    pub pin: PinArgs,
    /// Foreign programs that may run before topo-lb's: the value of the agent's flag of the same name
    #[arg(long, value_name = "PATTERNS", env = "TOPO_LB_TOLERATE_PROGRAMS", value_delimiter = ',')]
    pub tolerate_programs: Vec<Tolerated>,
    /// The agent does all that kube-proxy does: the agent's flag of the same name
    #[arg(long, env = "TOPO_LB_KUBE_PROXY_REPLACEMENT")]
    pub kube_proxy_replacement: bool,
    /// The devices by which clients outside come in: the value of the agent's flag of the same name
    #[arg(long, value_name = "PATTERNS", env = "TOPO_LB_EXTERNAL_DEVICES", value_delimiter = ',')]
    pub external_devices: Vec<Pattern>,
    /// Packets of clients outside go on to the endpoint's node: the value of the agent's flag of the same name
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_DIRECT_RETURN")]
    pub direct_return: DirectReturn,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: HealthzArgs says what it is")]
    pub healthz: HealthzArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

//! Flags that say which Services agents handle.

use clap::Args;
use topo_lb_core::topology::Scope;

/// What agents handle.
#[derive(Debug, Args)]
pub struct ScopeArgs {
    /// Which Services agents handle. Default: what the agents of the cluster are told, else all
    #[arg(long, value_enum, env = "TOPO_LB_SCOPE")]
    pub scope: Option<Scope>,
    /// The namespace of the agents' Pods, which say their --scope; this takes `list` on pods there
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "TOPO_LB_AGENTS_NAMESPACE",
        default_value = "topo-lb"
    )]
    pub agents_namespace: String,
}

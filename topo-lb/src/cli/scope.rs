//! Flags that say which Services agents handle.

use clap::Args;
use topo_lb_core::topology::Scope;

use super::AgentsNamespace;

/// What agents handle.
#[derive(Debug, Args)]
pub struct ScopeArgs {
    /// Which Services agents handle. Default: what the agents of the cluster are told, else all
    #[arg(long, value_enum, env = "TOPO_LB_SCOPE")]
    pub scope: Option<Scope>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: AgentsNamespace says what it is")]
    pub pods: AgentsNamespace,
}

//! Where load balancers ask.

use clap::Args;

use topo_lb_agent::serve::Listen;

/// Where load balancers ask whether this node forwards.
#[derive(Debug, Args)]
pub struct HealthzArgs {
    /// With --kube-proxy-replacement: answer load balancers here, at /healthz and /livez, as kube-proxy
    /// does. 0.0.0.0 and :: are all addresses of both families. Empty or `off`: nowhere
    #[arg(long, value_name = "ADDRESS:PORT", env = "TOPO_LB_HEALTHZ_BIND_ADDRESS",
          default_value_t = Listen::HEALTHZ)]
    pub healthz_bind_address: Listen,
}

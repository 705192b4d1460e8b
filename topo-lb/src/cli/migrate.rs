//! Flags of `topo-lb migrate`.

use std::path::PathBuf;

use clap::Args;

/// `topo-lb migrate`.
#[derive(Debug, Args)]
pub struct MigrateArgs {
    /// Files of YAML or JSON; `-` is standard input
    #[arg(value_name = "FILE", default_value = "-")]
    pub files: Vec<PathBuf>,
    /// Print unchanged documents, too: the output then replaces the file
    #[arg(long, env = "TOPO_LB_ALL")]
    pub all: bool,
    /// Zones are OpenYurt's node pools: close Services that prefer their zone (trafficDistribution) in it
    #[arg(long, env = "TOPO_LB_ZONES_ARE_POOLS")]
    pub zones_are_pools: bool,
}

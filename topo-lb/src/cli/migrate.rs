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
}

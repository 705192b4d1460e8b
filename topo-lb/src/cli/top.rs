//! Flags of `topo-lb top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{AgentsArgs, Output, PinArgs, name};
use crate::{commands::top::Column, commands::top::From, commands::top::Options};
use topo_lb_kube::source::kube::KubeTarget;

/// `topo-lb top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: PinArgs says what it is")]
    pub pin: PinArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: AgentsArgs says what it is")]
    pub agents: AgentsArgs,
    /// Ask every agent of a cluster through its API server, at their Pods, in place of this node's maps; the
    /// default as a plugin of kubectl
    #[arg(long, conflicts_with = "agent")]
    pub cluster: bool,
    /// With --cluster: kubeconfig file. Default: the in-cluster config, then $KUBECONFIG
    #[arg(long, value_name = "PATH", env = "TOPO_LB_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", env = "TOPO_LB_INTERVAL", default_value_t = 2,
          value_parser = clap::value_parser!(u16).range(1..=3_600))]
    pub interval: u16,
    /// The column that sorts
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_SORT")]
    pub sort: Column,
    /// Only Services whose names (NAMESPACE/NAME) contain this
    #[arg(long, value_name = "TEXT", default_value = "", env = "TOPO_LB_FILTER")]
    pub filter: String,
    /// Look twice, print the rates between, and exit; also if the output is no terminal
    #[arg(long)]
    pub once: bool,
    /// Output format of --once
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

impl TopArgs {
    /// What to show. `target`: the API server of --cluster.
    #[must_use]
    pub fn options(&self, target: KubeTarget) -> Options {
        let from = match self.agents.named() {
            Some(named) => named,
            None if self.cluster || name::is_plugin() => self.agents.of(target),
            None => From::Maps(self.pin.pin_dir.clone()),
        };
        let interval = Duration::from_secs(self.interval.into());
        Options { from, interval, sort: self.sort, filter: self.filter.clone() }
    }
}

//! Flags of `topo-lb top`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{Output, PinArgs, name};
use crate::source::kube::KubeTarget;
use crate::top::{Column, From, Options};

/// `topo-lb top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: PinArgs says what it is")]
    pub pin: PinArgs,
    /// Ask this agent in place of this node's maps; NODE=URL says on which node it is. Give it several times
    /// for several nodes
    #[arg(
        long,
        value_name = "URL",
        env = "TOPO_LB_AGENT_URLS",
        value_delimiter = ',',
        conflicts_with = "cluster"
    )]
    pub agent: Vec<String>,
    /// Ask every agent of a cluster through its API server, at their Pods; the default as a plugin of kubectl. Takes `list` on pods and `get`
    /// on pods/proxy; the agents must serve --metrics-listen
    #[arg(long)]
    pub cluster: bool,
    /// With --cluster: kubeconfig file. Default: the in-cluster config, then $KUBECONFIG
    #[arg(long, value_name = "PATH", env = "TOPO_LB_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// With --cluster: the namespace of the agents' Pods. Pods of others do not count
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "TOPO_LB_AGENTS_NAMESPACE",
        default_value = "topo-lb"
    )]
    pub agents_namespace: String,
    /// With --cluster: the port of the agents' --metrics-listen
    #[arg(long, value_name = "PORT", env = "TOPO_LB_METRICS_PORT", default_value_t = 19_876)]
    pub metrics_port: u16,
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
    /// Whether the counts come from this node's maps.
    #[must_use]
    pub fn reads_maps(&self) -> bool {
        self.agent.is_empty() && !self.cluster && !name::is_plugin()
    }

    /// What to show. `target`: the API server of --cluster.
    #[must_use]
    pub fn options(&self, target: KubeTarget) -> Options {
        let from = if self.cluster || self.agent.is_empty() && name::is_plugin() {
            let (namespace, port) = (self.agents_namespace.clone(), self.metrics_port);
            From::Cluster { target, namespace, port }
        } else if self.agent.is_empty() {
            From::Maps(self.pin.pin_dir.clone())
        } else {
            From::Agents(self.agent.clone())
        };
        let interval = Duration::from_secs(self.interval.into());
        Options { from, interval, sort: self.sort, filter: self.filter.clone() }
    }
}

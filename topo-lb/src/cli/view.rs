//! Flags of `topo-lb view`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::{SourceArgs, name, plan};
use crate::top::From;
use crate::topology::Scope;
use crate::topology::label::ZONE;
use crate::view::{Described, Options};

/// `topo-lb view`.
#[derive(Debug, Args)]
pub struct ViewArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: SourceArgs says what it is")]
    pub source: SourceArgs,
    /// Ask this agent in place of all agents of the cluster; NODE=URL says on which node it is. Give it several
    /// times for several nodes
    #[arg(long, value_name = "URL", env = "TOPO_LB_AGENT_URLS", value_delimiter = ',')]
    pub agent: Vec<String>,
    /// The namespace of the agents' Pods, when they are asked through the API server. Pods of others do not
    /// count
    #[arg(
        long,
        value_name = "NAMESPACE",
        env = "TOPO_LB_AGENTS_NAMESPACE",
        default_value = "topo-lb"
    )]
    pub agents_namespace: String,
    /// The port of the agents' --metrics-listen, when they are asked through the API server. That takes `list`
    /// on pods and `get` on pods/proxy
    #[arg(long, value_name = "PORT", env = "TOPO_LB_METRICS_PORT", default_value_t = 19_876)]
    pub metrics_port: u16,
    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", env = "TOPO_LB_INTERVAL", default_value = "2", value_parser = seconds)]
    pub interval: Duration,
    /// Group nodes by this label until the page picks another one
    #[arg(long, value_name = "LABEL", env = "TOPO_LB_BY", default_value = ZONE, value_parser = plan::label)]
    pub by: String,
    /// Which Services are handled on all nodes
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_SCOPE")]
    pub scope: Scope,
    /// Serve the page here. Whoever can connect can read it
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "TOPO_LB_VIEW_LISTEN",
        default_value = "127.0.0.1:19878"
    )]
    pub listen: SocketAddr,
    /// Also answer requests for this host name. Without it: for addresses and localhost
    #[arg(long, value_name = "NAME", env = "TOPO_LB_HOST", value_delimiter = ',')]
    pub host: Vec<String>,
}

impl ViewArgs {
    /// What to show.
    #[must_use]
    pub fn options(self) -> Options {
        let SourceArgs { manifests, kubeconfig, api_server } = &self.source;
        let is_named = kubeconfig.is_some() || api_server.is_some();
        let target = self.source.target();
        // Agents alone can be shown without a cluster; one that happens to be around may be another.
        let has_server = is_named || self.agent.is_empty() || name::is_plugin();
        let described = match manifests {
            Some(path) => Described::In(path.clone()),
            None if has_server => Described::By(target.clone()),
            None => Described::Nowhere,
        };
        let from = match (&self.agent[..], &described) {
            ([], Described::By(_)) => {
                let (namespace, port) = (self.agents_namespace, self.metrics_port);
                Some(From::Cluster { target, namespace, port })
            }
            ([], _) => None,
            _ => Some(From::Agents(self.agent)),
        };
        let Self { interval, scope, by, listen, host: hosts, .. } = self;
        Options { described, from, interval, scope, by, listen, hosts }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it is no number from 0.1 to 3600".to_owned())
}

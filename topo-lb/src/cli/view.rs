//! Flags of `topo-lb view`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::{AgentsArgs, SourceArgs, name, plan};
use crate::{commands::view::Described, commands::view::Options};
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::label::ZONE;

/// `topo-lb view`.
#[derive(Debug, Args)]
pub struct ViewArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: SourceArgs says what it is")]
    pub source: SourceArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: AgentsArgs says what it is")]
    pub agents: AgentsArgs,
    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, value_name = "SECONDS", env = "TOPO_LB_INTERVAL", default_value = "2", value_parser = seconds)]
    pub interval: Duration,
    /// Group nodes by this label until the page picks another one
    #[arg(long, value_name = "LABEL", env = "TOPO_LB_BY", default_value = ZONE, value_parser = plan::label)]
    pub by: String,
    /// Which Services are handled on all nodes. Without it: as the agents' Pods say, else all
    #[arg(long, value_enum, env = "TOPO_LB_SCOPE")]
    pub scope: Option<Scope>,
    /// Serve the page here. Whoever can connect can read it, unless there is a token
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
    /// Answer only who knows the token in this file, of 16 characters or more: as password of a browser, or as
    /// bearer token. It is read for each request
    #[arg(long, value_name = "FILE", env = "TOPO_LB_VIEW_TOKEN_FILE")]
    pub token_file: Option<PathBuf>,
}

impl ViewArgs {
    /// What to show.
    #[must_use]
    pub fn options(self) -> Options {
        let SourceArgs { manifests, kubeconfig, api_server } = &self.source;
        let is_named = kubeconfig.is_some() || !api_server.is_empty();
        let target = self.source.target();
        // Agents alone can be shown without a cluster; one that happens to be around may be another.
        let named = self.agents.named();
        let has_server = is_named || named.is_none() || name::is_plugin();
        let described = match manifests {
            Some(path) => Described::In(path.clone()),
            None if has_server => Described::By(target.clone()),
            None => Described::Nowhere,
        };
        let of_cluster = matches!(described, Described::By(_)).then(|| self.agents.of(target));
        let from = named.or(of_cluster);
        let Self { interval, scope, by, listen, host: hosts, token_file, .. } = self;
        Options { described, from, interval, scope, by, listen, hosts, token_file }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "it is no number from 0.1 to 3600".to_owned())
}

//! Flags of `topo-lb evacuate` and `topo-lb restore`.

use std::path::PathBuf;

use clap::Args;
use topo_lb_core::topology::evacuation::{self, Evacuation};

use super::{Output, ScopeArgs};

/// The API server to write to.
#[derive(Debug, Args)]
pub struct WriteArgs {
    /// A kubeconfig file. Default: the in-cluster config, then $KUBECONFIG
    #[arg(long, value_name = "PATH", env = "TOPO_LB_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// An API server that needs no credentials, or several in order, as for `explain`
    #[arg(long, value_name = "URL", env = "TOPO_LB_API_SERVER", value_delimiter = ',')]
    pub api_server: Vec<String>,
}

/// `topo-lb evacuate`.
#[derive(Debug, Args)]
pub struct EvacuateArgs {
    /// A node label and its value; its endpoints get no new connections. Without any: show what is evacuated
    #[arg(value_name = "LABEL=VALUE", value_parser = label_and_value)]
    pub labels: Vec<String>,
    /// End it by itself after this time, such as 90m or 2h
    #[arg(long = "for", value_name = "TIME", env = "TOPO_LB_FOR", value_parser = time)]
    pub duration: Option<String>,
    /// At its end, return on more and more nodes during this time, such as 5m
    #[arg(long, value_name = "TIME", env = "TOPO_LB_RAMP", value_parser = time)]
    pub ramp: Option<String>,
    /// Have strict policies without an endpoint left take this key, such as topology.kubernetes.io/region or `*`;
    /// without it, they refuse
    #[arg(long, value_name = "KEY", env = "TOPO_LB_ALLOW_STRICT")]
    pub allow_strict: Option<String>,
    /// Also evacuate Services that have no ready endpoint elsewhere, and values that no Node has
    #[arg(long)]
    pub force: bool,
    /// Write nothing: print the object, and what it would do
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: WriteArgs says what it is")]
    pub target: WriteArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: ScopeArgs says what it is")]
    pub scope: ScopeArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

/// `topo-lb restore`.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// What was evacuated
    #[arg(value_name = "LABEL=VALUE", required = true, value_parser = label_and_value)]
    pub labels: Vec<String>,
    /// Return on more and more nodes during this time, such as 5m; without it, at once
    #[arg(long, value_name = "TIME", env = "TOPO_LB_RAMP", value_parser = time)]
    pub ramp: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: WriteArgs says what it is")]
    pub target: WriteArgs,
}

/// `LABEL=VALUE`, checked as the annotation is.
pub(super) fn label_and_value(text: &str) -> Result<String, String> {
    match Evacuation::read(text) {
        Ok(it) if it.labels.len() == 1 && !text.contains(';') => Ok(text.to_owned()),
        Ok(_) => Err("one label and its value; more of them are arguments of their own".to_owned()),
        Err(rule) => Err(rule.to_string()),
    }
}

/// A time as in a ramp.
fn time(text: &str) -> Result<String, String> {
    evacuation::time(text).map(|_| text.to_owned()).map_err(|rule| rule.to_string())
}

//! Flags of `topo-lb plan`.

use std::path::PathBuf;

use clap::Args;

use super::Output;
use crate::commands::agent_metrics::Origin;
use crate::{commands::prometheus::Over, commands::prometheus::Prometheus};
use topo_lb_core::topology::Scope;
use topo_lb_core::topology::label::ZONE;
use topo_lb_core::topology::label_name::label_name;
use topo_lb_core::what_if::Setting;

/// `topo-lb plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// The cluster as it is: file or folder of YAML or JSON manifests with all Nodes, Services and
    /// EndpointSlices; `-` for standard input. Default: what the API server says now
    #[arg(long, value_name = "PATH", env = "TOPO_LB_FROM")]
    pub from: Option<PathBuf>,
    /// Without --from: a kubeconfig file. Default: the in-cluster config, then $KUBECONFIG
    #[arg(long, value_name = "PATH", env = "TOPO_LB_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// Without --from: an API server that needs no credentials, or several in order, as for `explain`
    #[arg(long, value_name = "URL", env = "TOPO_LB_API_SERVER", value_delimiter = ',')]
    pub api_server: Vec<String>,
    /// The whole cluster as it is to be, beside --from. Services, Nodes and policies that it lacks are
    /// gone. Not needed with --set
    #[arg(
        long,
        value_name = "PATH",
        env = "TOPO_LB_TO",
        required_unless_present = "set",
        requires = "from"
    )]
    pub to: Option<PathBuf>,
    /// Change an annotation of a Service after that: NAMESPACE/NAME=ANNOTATION:VALUE, or
    /// NAMESPACE/NAME=ANNOTATION- to remove it. Can be given more than once
    #[arg(long, value_name = "CHANGE", env = "TOPO_LB_SET")]
    pub set: Vec<Setting>,
    /// Group nodes by this label
    #[arg(long, value_name = "LABEL", env = "TOPO_LB_BY", default_value = ZONE, value_parser = label)]
    pub by: String,
    /// Metrics of agents, for the bytes that would stay in their zone: a file, the URL of an agent, or a
    /// folder with a file for each node, named after it. NODE=PATH or NODE=URL says which node it is of.
    /// Can be given more than once
    #[arg(long, value_name = "[NODE=]PATH|URL", env = "TOPO_LB_METRICS")]
    pub metrics: Vec<Origin>,
    /// The same bytes from a Prometheus that scrapes the agents: its URL, without /api/v1. HTTPS trusts the
    /// system's authorities, or those of SSL_CERT_FILE
    #[arg(long, value_name = "URL", env = "TOPO_LB_PROMETHEUS_URL", conflicts_with = "metrics")]
    pub prometheus: Option<String>,
    /// With --prometheus: a file with a bearer token
    #[arg(
        long,
        value_name = "PATH",
        env = "TOPO_LB_PROMETHEUS_TOKEN_FILE",
        requires = "prometheus",
        conflicts_with = "metrics"
    )]
    pub prometheus_token_file: Option<PathBuf>,
    /// With --prometheus: the bytes of this time up to now, such as 90m or 7d
    #[arg(
        long,
        value_name = "TIME",
        env = "TOPO_LB_OVER",
        default_value = "1d",
        requires = "prometheus",
        conflicts_with = "metrics"
    )]
    pub over: Over,
    /// Which Services are handled on all nodes
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_SCOPE")]
    pub scope: Scope,
    /// Show these Services, as NAMESPACE/NAME, even if nothing changes for them
    #[arg(value_name = "NAMESPACE/NAME")]
    pub services: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

impl PlanArgs {
    /// The Prometheus to ask.
    #[must_use]
    pub fn asked(&self) -> Option<Prometheus> {
        let (token_file, over) = (self.prometheus_token_file.clone(), self.over.clone());
        self.prometheus.clone().map(|url| Prometheus { url, token_file, over })
    }
}

/// A label name.
pub(super) fn label(text: &str) -> Result<String, String> {
    label_name(text).map(|()| text.to_owned()).map_err(|fault| format!("no label name: {fault}"))
}

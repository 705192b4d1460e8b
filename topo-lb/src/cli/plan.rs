//! Flags of `topo-lb plan`.

use std::env;
use std::path::PathBuf;

use clap::Args;
use clap::error::ErrorKind;

use super::{Output, ScopeArgs, name};
use crate::commands::agent_metrics::Origin;
use crate::{commands::prometheus::Over, commands::prometheus::Prometheus};
use topo_lb_core::topology::evacuation::Evacuation;
use topo_lb_core::topology::label::ZONE;
use topo_lb_core::topology::label_name::label_name;
use topo_lb_core::what_if::{Chosen, Prices, Setting};

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
    #[arg(long, value_name = "PATH", env = "TOPO_LB_TO", requires = "from")]
    pub to: Option<PathBuf>,
    /// Look for the soft policies that save most of what bytes out of the zone cost, with the figures of
    /// --metrics or --prometheus
    #[arg(long, conflicts_with_all = ["to", "set", "by"])]
    pub advise: bool,
    /// Compare the bytes of this time up to now, such as 90m or 7d, or since a moment, such as 2026-11-20 or
    /// 2026-11-20T08:00:00Z, with those of as long before: what a change of then has saved. Needs
    /// --prometheus, and no cluster
    #[arg(
        long,
        value_name = "TIME",
        env = "TOPO_LB_SINCE",
        conflicts_with_all = ["from", "to", "max_load", "manifests", "set", "advise", "metrics", "over", "by", "scope",
            "kubeconfig", "api_server"]
    )]
    pub since: Option<Over>,
    /// What a GB (10^9 bytes) costs from zone to zone, and from region to region; zone=0.01,region=0.02 if it is
    /// not said
    #[arg(long, value_name = "PRICES", env = "TOPO_LB_PRICE")]
    price: Option<Prices>,
    /// With --advise: most load of the busiest endpoint, in shares that all would get if all had the same
    #[arg(
        long,
        value_name = "TIMES",
        env = "TOPO_LB_MAX_LOAD",
        default_value = "1.3",
        value_parser = times,
        requires = "advise"
    )]
    pub max_load: f64,
    /// With --advise: least that a policy is to save in a month, in money; of what is counted where --metrics do
    /// not say of which time it is
    #[arg(
        long,
        value_name = "MONEY",
        env = "TOPO_LB_MIN_SAVING",
        default_value = "0",
        value_parser = money,
        requires = "advise"
    )]
    pub min_saving: f64,
    /// With --advise: write each Service with its new annotations to a file of this folder, for `kubectl
    /// apply --server-side -f`
    #[arg(long, value_name = "FOLDER", requires = "advise")]
    pub manifests: Option<PathBuf>,
    /// Change an annotation of a Service after that: NAMESPACE/NAME=ANNOTATION:VALUE, or
    /// NAMESPACE/NAME=ANNOTATION- to remove it. Can be given more than once
    #[arg(long, value_name = "CHANGE", env = "TOPO_LB_SET")]
    pub set: Vec<Setting>,
    /// Rehearse an evacuation on one page: all Services as if the endpoints at this value of a label were left, as by
    /// `evacuate`. Options of topo-lb.io/evacuate may follow: 'topology.kubernetes.io/zone=b; allow-strict=*'
    #[arg(long, value_name = "LABEL=VALUE", env = "TOPO_LB_WITHOUT", value_parser = evacuation,
        conflicts_with_all = ["to", "set", "advise", "since"])]
    pub without: Option<String>,
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
    /// With --prometheus: the bytes of this time up to now, such as 90m or 7d, or since a moment, as for --since
    #[arg(
        long,
        value_name = "TIME",
        env = "TOPO_LB_OVER",
        default_value = "1d",
        requires = "prometheus",
        conflicts_with = "metrics"
    )]
    pub over: Over,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: ScopeArgs says what it is")]
    pub scope: ScopeArgs,
    /// Show these Services, or all of a namespace, even if nothing changes for them. With --advise and --since:
    /// these alone
    #[arg(value_name = "NAMESPACE[/NAME]")]
    pub services: Vec<Chosen>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

/// What to type, where nothing says what changes.
const NOTHING: &str = "\
there is nothing to compare: say what is to change. For example
  topo-lb plan --set default/web=topology-keys:topology.kubernetes.io/zone,*    # one Service of this cluster
  topo-lb plan --from cluster.yaml --to changed.yaml                            # two files
  topo-lb plan --advise --prometheus http://127.0.0.1:9090 --over 7d            # what would save most
  topo-lb plan --without topology.kubernetes.io/zone=b                          # the loss of a zone
  topo-lb plan --since 3d --prometheus http://127.0.0.1:9090                    # what a change has saved";

impl PlanArgs {
    /// # Errors
    /// Nothing changes, or nobody says what is moved.
    pub fn check(&self) -> Result<(), clap::Error> {
        let is_counted = self.prometheus.is_some() || !self.metrics.is_empty();
        let why = match self {
            Self { advise: true, .. } if !is_counted => {
                "--advise needs the bytes that clients moved: --prometheus URL, or --metrics"
            }
            Self { since: Some(_), prometheus: None, .. } => {
                "--since needs the bytes of then and now: --prometheus URL"
            }
            Self { since: None, advise: false, to: None, without: None, set, .. }
                if set.is_empty() =>
            {
                NOTHING
            }
            _ => return Ok(()),
        };
        let why = why.replace("topo-lb plan", &format!("{} plan", name::called()));
        Err(name::command(name::called()).error(ErrorKind::MissingRequiredArgument, why))
    }

    /// What a GB costs.
    #[must_use]
    pub fn prices(&self) -> Prices {
        self.price.unwrap_or_default()
    }

    /// Whether prices are given for this command, and nothing that costs something. Those of the environment are
    /// for all commands.
    #[must_use]
    pub fn costs_nothing(&self) -> bool {
        let is_given = self.price.is_some() && env::var_os("TOPO_LB_PRICE").is_none();
        is_given && self.prometheus.is_none() && self.metrics.is_empty()
    }

    /// The Prometheus to ask.
    #[must_use]
    pub fn asked(&self) -> Option<Prometheus> {
        let token_file = self.prometheus_token_file.clone();
        let over = self.since.as_ref().unwrap_or(&self.over).clone();
        self.prometheus.clone().map(|url| Prometheus { url, token_file, over })
    }
}

/// A factor of at least 1.
fn times(text: &str) -> Result<f64, String> {
    let times = text.parse().ok().filter(|it| (1.0..=1e6).contains(it));
    times.ok_or_else(|| "it is no number of at least 1, such as 1.3".to_owned())
}

/// An amount of at least 0.
fn money(text: &str) -> Result<f64, String> {
    let money = text.parse().ok().filter(|it| (0.0..=1e12).contains(it));
    money.ok_or_else(|| "it is no amount of at least 0, such as 1.50".to_owned())
}

/// What `topo-lb.io/evacuate` says.
fn evacuation(text: &str) -> Result<String, String> {
    Evacuation::read(text).map(|_| text.to_owned()).map_err(|rule| rule.to_string())
}

/// A label name.
pub(super) fn label(text: &str) -> Result<String, String> {
    label_name(text).map(|()| text.to_owned()).map_err(|fault| format!("no label name: {fault}"))
}

//! The command line. Every flag also reads `TOPO_LB_<FLAG>`.

mod agent;
mod agents;
mod check;
mod dns;
mod evacuate;
mod exclusive;
mod frontends;
mod healthz;
mod lint;
mod migrate;
pub mod name;
mod plan;
mod pod;
mod scope;
mod source;
mod top;
mod trace;
mod view;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::commands::list::View;
pub use agent::{AgentArgs, node_name};
pub use agents::{AgentsArgs, AgentsNamespace};
pub use check::CheckArgs;
pub use dns::DnsArgs;
pub use evacuate::{EvacuateArgs, RestoreArgs, WriteArgs};
pub use frontends::{DirectReturn, FrontendArgs, Frontends};
pub use healthz::HealthzArgs;
pub use lint::LintArgs;
pub use migrate::MigrateArgs;
pub use plan::PlanArgs;
pub use pod::PodTask;
pub use scope::ScopeArgs;
pub use source::{SourceArgs, kube_target};
pub use top::TopArgs;
use topo_lb_agent::admin::probe::Probe;
use topo_lb_agent::serve::Listen;
use topo_lb_kernel::datapath::attach::mode;
pub use trace::TraceArgs;
pub use view::ViewArgs;

/// Where the hierarchy of cgroups is on most hosts.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

/// Keeps Kubernetes Service traffic close to the client, in the kernel, and explains every decision.
#[derive(Debug, Parser)]
#[command(name = "topo-lb", version, about, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Try topo-lb on this machine alone, as root: real connections between two zones, and nothing left
    #[command(after_help = "\
Examples:
  topo-lb try                            # as root
  topo-lb try -o json | jq .ok

Needs no cluster. All is in namespaces and cgroups of the command, also after Ctrl-C. Exit code 1:
a connection went where it should not.")]
    Try(TryArgs),
    /// Run on this node: follow the cluster and keep the kernel's maps up to date
    #[command(after_help = "\
Examples:
  topo-lb agent                                            # in a DaemonSet, NODE_NAME set
  topo-lb agent --kubeconfig ~/.kube/config --node-name worker-1 --scope opt-in
  topo-lb agent --manifests ./cluster.yaml --node-name worker-1
  topo-lb agent --observe                                  # translates nothing, only counts

The datapath stays in place when the agent stops: connections go on by the last known state.
`topo-lb cleanup` removes it.")]
    Agent(Box<AgentArgs>),
    /// Show which endpoints a node may use, and why; needs no privileges and no kernel support
    #[command(after_help = "\
Examples:
  topo-lb explain --manifests ./cluster.yaml --node worker-1
  kubectl get nodes,services,endpointslices -A -o json | topo-lb explain --manifests - --node worker-1
  topo-lb explain --kubeconfig ~/.kube/config --node worker-1 default/web -o json
  topo-lb explain --agent http://10.0.0.7:19876 default/web              # what this agent knows, also without the API server
  topo-lb explain --manifests ./cluster.yaml --all-nodes default/web     # which nodes are refused or leave their zone")]
    Explain(ExplainArgs),
    /// Report problems that policies will cause; exit code 1 if any is of --level or worse
    #[command(after_help = "\
Examples:
  topo-lb lint --manifests ./cluster.yaml
  topo-lb lint --kubeconfig ~/.kube/config -o json
  topo-lb lint --manifests ./cluster.yaml --level info                  # closed loops, too
  topo-lb lint --manifests ./cluster.yaml --ignore hints-missing,unknown-node
  kubectl get namespaces,nodes,services,endpointslices -A -o json | topo-lb lint --manifests -")]
    Lint(LintArgs),
    /// Show what a change of policies, Nodes or endpoints would do, or has saved; exit code 1 if nodes would be refused, or
    /// if lint would warn of what --set says
    #[command(after_help = "\
Examples:
  topo-lb plan --from cluster.yaml --to changed.yaml
  topo-lb plan --from cluster.yaml --set default/web=topology-keys:topology.kubernetes.io/zone,*
  topo-lb plan --from cluster.yaml --set default/web=topology-keys:rack --by rack
  topo-lb plan --from cluster.yaml --set default/web=spill:5% --set default/db=topology-keys-
  topo-lb plan --from cluster.json --to changed.json --metrics metrics/  # and how many bytes stay
  topo-lb plan --from cluster.json --to changed.json --prometheus http://127.0.0.1:9090 --over 7d
  topo-lb plan --advise --prometheus http://127.0.0.1:9090 --over 7d     # which policies save most
  topo-lb plan --since 3d --prometheus http://127.0.0.1:9090             # what a change has saved
  topo-lb plan --without topology.kubernetes.io/zone=b                   # rehearse the loss of a zone
  kubectl get nodes,services,endpointslices -A -o json > cluster.json    # the whole cluster

Each node counts as one client, and all clients open equally many connections to each
Service port. A load of 2 is what two such clients open.")]
    Plan(PlanArgs),
    /// Empty a zone, a rack, a node: its endpoints get no new connections, in the whole cluster, until `restore`
    #[command(after_help = "\
Examples:
  topo-lb evacuate topology.kubernetes.io/zone=b --dry-run       # what would happen: who refuses, who carries more
  topo-lb evacuate topology.kubernetes.io/zone=b --for 2h --ramp 5m
  topo-lb evacuate kubernetes.io/hostname=worker-7
  topo-lb evacuate topology.kubernetes.io/zone=b --allow-strict topology.kubernetes.io/region
  topo-lb evacuate                                               # what is evacuated now
  topo-lb restore topology.kubernetes.io/zone=b --ramp 5m

Open connections stay. Load balancers are told to leave the nodes (health checks answer 503). A
Service without a ready endpoint elsewhere stays where it is, unless --force. It writes one
ClusterTopologyPolicy for each label.")]
    Evacuate(EvacuateArgs),
    /// End an evacuation: at once, or on more and more nodes
    #[command(after_help = "\
Examples:
  topo-lb restore topology.kubernetes.io/zone=b
  topo-lb restore topology.kubernetes.io/zone=b --ramp 5m        # a cold zone gets its clients back in 5 minutes")]
    Restore(RestoreArgs),
    /// Rewrite Services with spec.topologyKeys or OpenYurt's annotation: topo-lb's annotation, same meaning
    #[command(after_help = "\
Examples:
  topo-lb migrate services.yaml                     # the changed documents; a sentence for each on stderr
  topo-lb migrate --all services.yaml > new.yaml    # the whole file
  kubectl get services -A -o yaml | topo-lb migrate > changed.yaml
  topo-lb migrate --zones-are-pools services.yaml   # PreferClose becomes a closed pool

Comments and order stay in documents in block style. It changes no file and no cluster.")]
    Migrate(MigrateArgs),
    /// Show what the kernel's maps hold
    #[command(after_help = "\
Examples:
  topo-lb list services                  # frontends, tiers, where connections went, what lacks room
  topo-lb list endpoints -o json
  topo-lb list connections               # unconnected UDP flows, connections that tc translates
  topo-lb list hooks                     # what is attached where, tc packets by outcome")]
    List(ListArgs),
    /// Show which Services have how much traffic now, and how much of it leaves its zone
    #[command(after_help = "\
Examples:
  topo-lb top                                                   # on a node: from the kernel's maps
  topo-lb top --agent http://10.0.0.7:19876 --agent http://10.0.0.8:19876
  topo-lb top --cluster --kubeconfig ~/.kube/config --sort bytes
  topo-lb top --once -o json --filter default/                  # one look, for scripts")]
    Top(TopArgs),
    /// Show connections to Services as this node decides them: who dialled what, and where it goes
    #[command(after_help = "\
Examples:
  topo-lb trace                                        # as root, on the node; Ctrl-C ends it
  topo-lb trace default/web
  topo-lb trace --pod default/client-0
  topo-lb trace default/web --count 10 -o json         # for scripts: one object per line

While nobody traces, it costs nothing but a look-up per connection.")]
    Trace(TraceArgs),
    /// Serve a web page that shows zones, nodes, and the traffic between them, live
    #[command(after_help = "\
Examples:
  topo-lb view                                                  # as kubectl would, then open http://127.0.0.1:19878
  topo-lb view --kubeconfig ~/.kube/config --by rack
  topo-lb view --manifests ./cluster.yaml --agent worker-1=http://10.0.0.7:19876
  topo-lb view --manifests ./cluster.yaml                       # decisions only

The page reads and never changes anything. Ctrl-C ends it.")]
    View(ViewArgs),
    /// Check whether this host can run topo-lb (kernel, helpers, mounts, capabilities) and whether the hooks fire
    #[command(after_help = "\
Examples:
  topo-lb check
  topo-lb check -o json")]
    Check(CheckArgs),
    /// Print the CustomResourceDefinitions of TopologyPolicy and ClusterTopologyPolicy
    #[command(after_help = "\
Examples:
  topo-lb crds | kubectl apply -f -
  topo-lb crds | kubectl apply --validate=false -f -                    # Kubernetes before 1.25

Without them everything else works: annotations of Services and Namespaces remain.")]
    Crds,
    /// Detach the programs and remove every pin
    #[command(after_help = "\
Examples:
  topo-lb cleanup
  topo-lb cleanup --pin-dir /sys/fs/bpf/my-node")]
    Cleanup(CleanupArgs),
    /// Ask this host's agent whether it is alive or ready; exit code 1 if not
    #[command(after_help = "\
Examples:
  topo-lb probe livez                    # exec probe of a container with TOPO_LB_PROBE_SOCKET
  topo-lb probe readyz --probe-socket /run/topo-lb/probes/socket")]
    Probe(ProbeArgs),
    /// What containers of deploy/ do besides the agent
    #[command(hide = true, subcommand)]
    Pod(PodTask),
    /// What `check` runs in a cgroup of its own
    #[command(hide = true)]
    SelfProbe {
        /// Where to connect.
        address: std::net::SocketAddr,
    },
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For scripts.
    Json,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// It is done.
    #[default]
    On,
    /// It is not done.
    Off,
}

/// Which TCP connections are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Count {
    /// Those that topo-lb translates.
    #[default]
    Handled,
    /// All of this node's clients, at their end.
    All,
}

/// How logs are printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For collectors.
    Json,
}

/// Where the maps and links are pinned.
#[derive(Debug, Args)]
pub struct PinArgs {
    /// Directory on a bpffs for maps and links
    #[arg(
        long,
        value_name = "PATH",
        env = "TOPO_LB_PIN_DIR",
        default_value = "/sys/fs/bpf/topo-lb"
    )]
    pub pin_dir: PathBuf,
}

impl PinArgs {
    /// What to know before one reads the counters of these maps, if anything.
    #[must_use]
    pub fn caveat(&self) -> Option<&'static str> {
        mode::observes(&self.pin_dir).then_some(
            "the programs only observe: connections and refusals are those that would be, and nothing is \
             translated",
        )
    }
}

/// `topo-lb explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: SourceArgs says what it is")]
    pub source: SourceArgs,
    /// The node to explain; else $NODE_NAME; without both, `kubectl topo` shows all nodes
    #[arg(long, value_name = "NAME", env = "TOPO_LB_NODE")]
    pub node: Option<String>,
    /// Show all nodes and their tiers instead: which are refused, which leave their zone
    #[arg(long, env = "TOPO_LB_ALL_NODES")]
    pub all_nodes: bool,
    /// An agent, such as http://10.0.0.7:19876. Without --node and --manifests: what it decides for the named Services, by
    /// what it knows itself. With one of them: only to which nodes it sends on packets of clients outside
    #[arg(long, value_name = "URL", env = "TOPO_LB_AGENT_URL", conflicts_with = "all_nodes")]
    pub agent: Option<String>,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: ScopeArgs says what it is")]
    pub scope: ScopeArgs,
    /// Only these Services, as NAMESPACE/NAME, or one port, as NAMESPACE/NAME:PORT. Default: all
    #[arg(value_name = "NAMESPACE/NAME")]
    pub services: Vec<String>,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

/// `topo-lb list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// What to show
    #[arg(value_enum)]
    pub what: View,
    /// With `peers`: where the agent of this host listens
    #[arg(long, value_name = "ADDRESS:PORT", env = "TOPO_LB_LISTEN", default_value_t = Listen::DEFAULT)]
    pub listen: Listen,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: PinArgs says what it is")]
    pub pin: PinArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

/// `topo-lb try`.
#[derive(Debug, Args)]
pub struct TryArgs {
    /// Output format
    #[arg(short, long, value_enum, default_value_t, env = "TOPO_LB_OUTPUT")]
    pub output: Output,
}

/// `topo-lb cleanup`.
#[derive(Debug, Args)]
pub struct CleanupArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: PinArgs says what it is")]
    pub pin: PinArgs,
}

/// `topo-lb probe`.
#[derive(Debug, Args)]
pub struct ProbeArgs {
    /// What to ask the agent
    #[arg(value_enum)]
    pub what: Probe,
    /// The agent's --probe-socket
    #[arg(long, value_name = "PATH", env = "TOPO_LB_PROBE_SOCKET")]
    pub probe_socket: PathBuf,
}

#[cfg(test)]
mod tests;

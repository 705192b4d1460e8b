//! The command line. Every flag also reads `TOPO_LB_<FLAG>`.

mod agent;
mod agents;
mod check;
mod dns;
mod exclusive;
mod frontends;
mod lint;
mod migrate;
pub mod name;
mod plan;
mod source;
mod top;
mod trace;
mod view;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use topo_lb_common::maps;

use crate::admin::Listen;
use crate::admin::probe::Probe;
use crate::datapath::attach::mode;
use crate::datapath::attach::pin::TcAttach;
use crate::datapath::inspect::tolerated::Tolerated;
use crate::datapath::programs::object::TcpPeer;
use crate::device::Pattern;
use crate::exclusion::Namespace;
use crate::list::View;
use crate::plan::WhenFull;
use crate::topology::Scope;
pub use agent::node_name;
pub use agents::AgentsArgs;
pub use check::CheckArgs;
pub use dns::DnsArgs;
pub use frontends::{FrontendArgs, Frontends};
pub use lint::LintArgs;
pub use migrate::MigrateArgs;
pub use plan::PlanArgs;
pub use source::{SourceArgs, kube_target};
pub use top::TopArgs;
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
  sudo topo-lb try
  sudo topo-lb try -o json | jq .ok

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
    /// Show what a change of policies, Nodes or endpoints would do; exit code 1 if nodes would be refused
    #[command(after_help = "\
Examples:
  topo-lb plan --from cluster.yaml --to changed.yaml
  topo-lb plan --from cluster.yaml --set default/web=topology-keys:topology.kubernetes.io/zone,*
  topo-lb plan --from cluster.yaml --set default/web=topology-keys:rack --by rack
  topo-lb plan --from cluster.yaml --set default/web=spill:5% --set default/db=topology-keys-
  topo-lb plan --from cluster.json --to changed.json --metrics metrics/  # and how many bytes stay
  topo-lb plan --from cluster.json --to changed.json --prometheus http://127.0.0.1:9090 --over 7d
  kubectl get nodes,services,endpointslices -A -o json > cluster.json    # the whole cluster

Each node counts as one client, and all clients open equally many connections to each
Service port. A load of 2 is what two such clients open.")]
    Plan(PlanArgs),
    /// Rewrite Services with spec.topologyKeys or OpenYurt's annotation: topo-lb's annotation, same meaning
    #[command(after_help = "\
Examples:
  topo-lb migrate services.yaml                     # the changed documents; a sentence for each on stderr
  topo-lb migrate --all services.yaml > new.yaml    # the whole file
  kubectl get services -A -o yaml | topo-lb migrate > changed.yaml

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
  topo-lb top                                                   # this node, from the kernel's maps
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

/// Where load balancers ask whether this node forwards.
#[derive(Debug, Args)]
pub struct HealthzArgs {
    /// With --kube-proxy-replacement: answer load balancers here, at /healthz and /livez, as kube-proxy
    /// does. 0.0.0.0 and :: are all addresses of both families. Empty or `off`: nowhere
    #[arg(long, value_name = "ADDRESS:PORT", env = "TOPO_LB_HEALTHZ_BIND_ADDRESS",
          default_value_t = Listen::HEALTHZ)]
    pub healthz_bind_address: Listen,
}

/// `topo-lb agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: SourceArgs says what it is")]
    pub source: SourceArgs,
    /// This node's name; else $NODE_NAME
    #[arg(long, value_name = "NAME", env = "TOPO_LB_NODE_NAME")]
    pub node_name: Option<String>,
    /// Which Services are handled
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_SCOPE")]
    pub scope: Scope,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: FrontendArgs says what it is")]
    pub frontends: FrontendArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: HealthzArgs says what it is")]
    pub healthz: HealthzArgs,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: DnsArgs says what it is")]
    pub dns: DnsArgs,
    /// The cgroup (v2) whose processes topo-lb serves
    #[arg(long, value_name = "PATH", env = "TOPO_LB_CGROUP_ROOT", default_value = CGROUP_ROOT)]
    pub cgroup_root: PathBuf,
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: PinArgs says what it is")]
    pub pin: PinArgs,
    /// Folder for the saved state of the cluster: the agent starts from it while no API server
    /// answers. Default: none
    #[arg(long, value_name = "PATH", env = "TOPO_LB_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// Exclude all Pods of these namespaces: their connections are not translated, as a service mesh
    /// needs it. Separated by commas
    #[arg(
        long,
        value_name = "NAMESPACES",
        env = "TOPO_LB_EXCLUDE_NAMESPACES",
        value_delimiter = ','
    )]
    pub exclude_namespaces: Vec<Namespace>,
    /// Exclude Pods with the annotation `topo-lb.io/exclude: "true"`
    #[arg(long, env = "TOPO_LB_EXCLUDE_ANNOTATED_PODS")]
    pub exclude_annotated_pods: bool,
    /// Translate nothing: only count what would be done, beside what happens
    #[arg(long, env = "TOPO_LB_OBSERVE")]
    pub observe: bool,
    /// What getpeername returns for a TCP connection to a Service
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_TCP_PEER")]
    pub tcp_peer: TcpPeer,
    /// Count what TCP connections to Services move, their round trips and failures, without work per
    /// packet. It takes a kernel with BTF, Linux 5.9 or later; see `topo-lb check`
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_ACCOUNTING")]
    pub accounting: Switch,
    /// End TCP connections whose endpoint is gone. Connected UDP sockets are always ended. Not with
    /// `--tcp-peer endpoint`, which does not record what was dialled
    #[arg(long, env = "TOPO_LB_TERMINATE_TCP")]
    pub terminate_tcp: bool,
    /// Room in the maps: frontends per address family, and Service ports in all
    #[arg(long, value_name = "N", env = "TOPO_LB_MAX_SERVICES", default_value_t = maps::DEFAULT_SERVICES,
          value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub max_services: u32,
    /// Room in the maps, per address family: so many endpoints of Services with more than 6 (4 over IPv6), and so
    /// many of UDP Services and Services with session affinity
    #[arg(long, value_name = "N", env = "TOPO_LB_MAX_ENDPOINTS", default_value_t = maps::DEFAULT_SLOTS,
          value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub max_endpoints: u32,
    /// What to do with Services without room in the maps. A policy is strict if it can leave a node
    /// without an endpoint: keys without `*`, OpenYurt's, `internalTrafficPolicy: Local`
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_WHEN_FULL")]
    pub when_full: WhenFull,
    /// Room in the maps, per address family: clients with session affinity
    #[arg(long, value_name = "N", env = "TOPO_LB_MAX_FLOWS", default_value_t = maps::DEFAULT_FLOWS,
          value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub max_flows: u32,
    /// Devices of the host whose packets are translated, for clients without a socket on this node:
    /// virtual machines, Kata, gVisor. For KubeVirt and Kata name the host's ends of the Pods' veth
    /// pairs: veth*, cali*, lxc*. Names, with * for any text, separated by commas. Default: none
    #[arg(long, value_name = "PATTERNS", env = "TOPO_LB_TC_DEVICES", value_delimiter = ',')]
    pub tc_devices: Vec<Pattern>,
    /// How to attach programs to these devices
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_TC_ATTACH")]
    pub tc_attach: TcAttach,
    /// Room in the maps, per address family: connections of such clients
    #[arg(long, value_name = "N", env = "TOPO_LB_MAX_CONNECTIONS", default_value_t = maps::DEFAULT_CONNECTIONS,
          value_parser = clap::value_parser!(u32).range(1..=8_388_608))]
    pub max_connections: u32,
    /// Foreign programs that may run before topo-lb's, because they only filter: names as `bpftool
    /// prog` prints them, with * for any text, or ids such as id:42; separated by commas. Without
    /// CAP_SYS_ADMIN the kernel tells the agent no names: then only ids, and a lone `*` for all, have
    /// an effect. A program gets another id each time it is loaded
    #[arg(long, value_name = "PATTERNS", env = "TOPO_LB_TOLERATE_PROGRAMS", value_delimiter = ',')]
    pub tolerate_programs: Vec<Tolerated>,
    /// Serve /metrics, /healthz, /livez, /readyz, /explain and /state here over HTTP, to everybody who
    /// can connect. Port 0: any free port. `off`: nowhere
    #[arg(long, value_name = "ADDRESS:PORT", env = "TOPO_LB_LISTEN", default_value_t = Listen::DEFAULT)]
    pub listen: Listen,
    /// Serve only /metrics here too, for a Prometheus elsewhere. `off`: nowhere
    #[arg(long, value_name = "ADDRESS:PORT", env = "TOPO_LB_METRICS_LISTEN", default_value_t = Listen::Off)]
    pub metrics_listen: Listen,
    /// Most Service ports with metrics of their own; all others share series with `(others)` in place of
    /// their names
    #[arg(long, value_name = "N", env = "TOPO_LB_METRICS_SERVICES", default_value_t = 500,
          value_parser = clap::value_parser!(u32).range(..=65_536))]
    pub metrics_services: u32,
    /// Unix socket for `topo-lb probe`. Only the agent's own user can connect. Default: none
    #[arg(long, value_name = "PATH", env = "TOPO_LB_PROBE_SOCKET")]
    pub probe_socket: Option<PathBuf>,
    /// Format of the log. RUST_LOG sets its level
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_LOG_FORMAT")]
    pub log_format: LogFormat,
}

/// `topo-lb explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    #[command(flatten)]
    #[allow(missing_docs, reason = "flattened: SourceArgs says what it is")]
    pub source: SourceArgs,
    /// The node to explain; else $NODE_NAME
    #[arg(long, value_name = "NAME", env = "TOPO_LB_NODE")]
    pub node: Option<String>,
    /// Show all nodes and their tiers instead: which are refused, which leave their zone
    #[arg(long, env = "TOPO_LB_ALL_NODES")]
    pub all_nodes: bool,
    /// Which Services are handled on that node
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_SCOPE")]
    pub scope: Scope,
    /// Only these Services, as NAMESPACE/NAME. Default: all
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

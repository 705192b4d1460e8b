//! `topo-lb agent`: its flags, and what the agent does as they say.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use ipnet::IpNet;
use topo_lb_common::maps;

use super::{
    CGROUP_ROOT, Count, DnsArgs, FrontendArgs, HealthzArgs, LogFormat, PinArgs, SourceArgs, Switch,
};
use topo_lb_agent::app::{Config, Source};
use topo_lb_agent::serve::Listen;
use topo_lb_agent::{admin, health};
use topo_lb_core::exclusion::{Namespace, Rules, Selection};
use topo_lb_core::plan::{Capacity, WhenFull};
use topo_lb_core::topology::Scope;
use topo_lb_kernel::datapath::Options;
use topo_lb_kernel::datapath::host::connection_room::Host;
use topo_lb_kernel::datapath::host::netns;
use topo_lb_kernel::datapath::inspect::tolerated::Tolerated;
use topo_lb_kernel::datapath::pin::{TcAttach, Xdp};
use topo_lb_kernel::datapath::programs::object::{AllFrontends, TcpPeer};
use topo_lb_kernel::device::Pattern;

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
    /// Without a word from the API server for so long, the node is an island: it probes the endpoints that its
    /// connections get, and those that are dead get no new ones until the API server is back. Seconds, or a number
    /// with s, m or h. 0: never
    #[arg(long, value_name = "DURATION", env = "TOPO_LB_ISLAND_AFTER", default_value = "60s",
          value_parser = duration)]
    pub island_after: Duration,
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
    /// Steer all Pods of these namespaces: where they dial a far endpoint of a Service with `topo-lb.io/direct:
    /// steer` by its address, they get one that the Service's policy chooses. Separated by commas
    #[arg(
        long,
        value_name = "NAMESPACES",
        env = "TOPO_LB_STEER_NAMESPACES",
        value_delimiter = ','
    )]
    pub steer_namespaces: Vec<Namespace>,
    /// Steer Pods with the annotation `topo-lb.io/steer: "true"`
    #[arg(long, env = "TOPO_LB_STEER_ANNOTATED_PODS")]
    pub steer_annotated_pods: bool,
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
    /// Which TCP connections of this node's clients are counted: those that topo-lb translates, or all, which tells
    /// what Services cost that it leaves to kube-proxy, and Pods that are dialled directly. Without work per packet
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_COUNT")]
    pub count: Count,
    /// With --count all: ranges of the Pods' addresses, separated by commas, as kube-proxy's `--cluster-cidr`. Then
    /// connections to Pods without a Service are told from those that leave the cluster
    #[arg(long, value_name = "RANGES", env = "TOPO_LB_POD_RANGES", value_delimiter = ',')]
    pub pod_ranges: Vec<IpNet>,
    /// End TCP connections whose endpoint is gone. Connected UDP sockets are always ended. Not with
    /// `--tcp-peer endpoint`, which does not record what was dialled
    #[arg(long, env = "TOPO_LB_TERMINATE_TCP")]
    pub terminate_tcp: bool,
    /// Room in the maps: frontends per address family, and Service ports in all
    #[arg(long, value_name = "N", env = "TOPO_LB_MAX_SERVICES", default_value_t = maps::DEFAULT_SERVICES,
          value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub max_services: u32,
    /// Room in the maps, per address family: so many endpoints of Services with more than 6 (4 over IPv6), once
    /// for all frontends that lead to the same ones, and so many of UDP Services and Services with session
    /// affinity
    #[arg(long, value_name = "N", env = "TOPO_LB_MAX_ENDPOINTS", default_value_t = maps::DEFAULT_SLOTS,
          value_parser = clap::value_parser!(u32).range(1..=16_777_216))]
    pub max_endpoints: u32,
    /// What to do with Services without room in the maps. A policy is strict if it can leave a node
    /// without an endpoint: keys without `*`, OpenYurt's, `internalTrafficPolicy: Local`
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_WHEN_FULL")]
    pub when_full: WhenFull,
    /// Room in the maps, per address family: clients with session affinity, so many with a socket on this
    /// node, and as many of tc
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
    /// With --kube-proxy-replacement: whether packets of known connections from outside to endpoints of other
    /// nodes are sent on by the driver of the device (XDP), before the kernel makes packets of frames
    #[arg(long, value_enum, default_value_t, env = "TOPO_LB_XDP")]
    pub xdp: Xdp,
    /// Room in the maps, per address family: open connections of such clients, and of clients outside of the
    /// node. Default: 131,072, or 32,768 for each CPU; less where full tables would take more than a
    /// sixteenth of the node's memory, or do not fit under the container's memory limit
    #[arg(long, value_name = "N", env = "TOPO_LB_MAX_CONNECTIONS",
          value_parser = clap::value_parser!(u32).range(1..=4_194_304))]
    pub max_connections: Option<u32>,
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

impl AgentArgs {
    /// What the agent does.
    ///
    /// # Errors
    /// Nobody says which node this is, or its network namespace cannot be read.
    pub fn config(self) -> anyhow::Result<Config> {
        let serves_guests = !self.tc_devices.is_empty();
        let has_tc = serves_guests || self.frontends.kube_proxy_replacement;
        let connections = match has_tc {
            true => self.max_connections.unwrap_or_else(|| {
                let host = Host::this();
                host.sized(self.max_services, self.max_endpoints, self.max_flows).connections()
            }),
            false => 0,
        };
        let (exposing, replacement) = (self.frontends.exposing(), self.frontends.replacement());
        let masquerade_mark = replacement.as_ref().map_or(0, |it| it.masquerade_mark);
        let health = self.health();
        let returns_directly = exposing.as_ref().is_some_and(|it| it.direct_return);
        let all_frontends = exposing.as_ref().map(|_| {
            let host_netns =
                netns::cookie().context("cannot read the cookie of this network namespace")?;
            anyhow::Ok(AllFrontends { masquerade_mark, host_netns, returns_directly })
        });
        let all_frontends = all_frontends.transpose()?;
        let exclusions = Rules {
            excluded: Selection::new(self.exclude_namespaces, self.exclude_annotated_pods),
            steered: Selection::new(self.steer_namespaces, self.steer_annotated_pods),
        };
        Ok(Config {
            exposing,
            replacement,
            node: node_name(self.node_name, "--node-name")?.into(),
            source: self.source.of_agent(),
            state_dir: self.state_dir,
            // Where nothing is translated, nothing is to be mended.
            island_after: Some(self.island_after).filter(|it| !it.is_zero() && !self.observe),
            scope: self.scope,
            pod_ranges: self.pod_ranges,
            when_full: self.when_full,
            devices: self.tc_devices,
            tolerated: self.tolerate_programs,
            admin: admin::Options {
                listen: self.listen,
                metrics_listen: self.metrics_listen,
                probe_socket: self.probe_socket,
                metrics_services: self.metrics_services as usize,
            },
            health,
            dns: self.dns.options(),
            terminate_tcp: self.terminate_tcp,
            datapath: Options {
                pin_dir: self.pin.pin_dir,
                cgroup_root: self.cgroup_root,
                capacity: Capacity {
                    services: self.max_services,
                    slots: self.max_endpoints,
                    members: self.max_endpoints,
                    flows: self.max_flows,
                    connections,
                    // More than there are frontends, so that each can be denied.
                    sources: match all_frontends {
                        Some(_) => self.max_services.max(maps::MOST_SOURCES),
                        None => 0,
                    },
                    hops: if returns_directly { self.max_flows } else { 0 },
                    ..Capacity::default()
                },
                tcp_peer: self.tcp_peer,
                accounting: self.accounting == Switch::On,
                exclusions: !exclusions.is_empty(),
                observe: self.observe,
                count_all: self.count == Count::All && self.accounting == Switch::On,
                serves_guests,
                tc_attach: self.tc_attach,
                xdp: self.xdp,
                all_frontends,
            },
            exclusions,
        })
    }

    /// Where load balancers get answers; `None`: nowhere.
    fn health(&self) -> Option<health::Options> {
        self.frontends.kube_proxy_replacement.then(|| health::Options {
            listen: self.healthz.healthz_bind_address,
            node_ports: self.frontends.nodeport_addresses.clone(),
        })
    }
}

impl SourceArgs {
    fn of_agent(self) -> Source {
        let target = self.target();
        self.manifests.map_or(Source::Kube(target), Source::Manifests)
    }
}

/// A time in whole seconds (`60`, `60s`), minutes (`m`) or hours (`h`), up to a week.
fn duration(text: &str) -> Result<Duration, String> {
    const MOST: u64 = 7 * 24 * 3_600;
    let unit = text.bytes().last().and_then(|unit| match unit {
        b'h' => Some(3_600),
        b'm' => Some(60),
        b's' => Some(1),
        _ => None,
    });
    let number = if unit.is_some() { &text[..text.len() - 1] } else { text };
    // `parse` takes a sign, too.
    let digits = Some(number).filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
    let seconds = digits.and_then(|it| it.parse::<u64>().ok()?.checked_mul(unit.unwrap_or(1)));
    let seconds = seconds.filter(|seconds| *seconds <= MOST).map(Duration::from_secs);
    seconds.ok_or_else(|| "it is no time such as 60, 60s, 5m or 1h, up to a week".to_owned())
}

/// The node that `flag`, here `given`, names, or else NODE_NAME.
///
/// # Errors
/// Neither does.
pub fn node_name(given: Option<String>, flag: &str) -> anyhow::Result<String> {
    match given.or_else(|| std::env::var("NODE_NAME").ok()).filter(|name| !name.is_empty()) {
        Some(node) => Ok(node),
        None => bail!("which node is this? Say it with {flag} NAME or NODE_NAME"),
    }
}

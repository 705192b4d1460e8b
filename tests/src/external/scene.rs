//! The lab of the table: two nodes, endpoints on both, and everybody who dials.

use std::collections::BTreeMap;
use std::iter::zip;
use std::net::IpAddr;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use strum::VariantArray as _;

use crate::address::Family;
use crate::agent::Agent;
use crate::binary::Binary;
use crate::cgroup::Cgroup;
use crate::client::Client;
use crate::cluster::Cluster;
use crate::dial::{Dial, Dialled};
use crate::direct_return::wait_for_proofs;
use crate::kube_proxy::{Program, VARIABLE};
use crate::kubernetes_1_20;
use crate::lab;
use crate::manifest::Manifests;
use crate::netns::NetNs;
use crate::node::NodePlan;
use crate::process::{Running, fed, spawn_logged};
use crate::requirements;
use crate::scene::HERE;
use crate::wait::until;
use crate::wiring::{GATEWAY4, fabric4, node4, node6};
use topo_lb_fake_api::{FakeApi, NODES, OLD_SLICES, SERVICES};

use super::cell::{
    Caller, Cell, Endpoints, HERE_NUMBER, Service, THERE, THERE_NUMBER, Target, Variant, node,
};
use super::objects;
use super::table::{Outcome, Table};

/// The client outside of the cluster.
const OUTSIDE: &str = "outside";
/// Its number on the fabric.
const OUTSIDE_NUMBER: u8 = 9;
/// Ranges of pod addresses.
const PODS: &str = "10.244.0.0/16,fd00:244::/32";
/// Ranges of external IPs.
const EXTERNAL_IPS: &str = "198.51.100.0/24,2001:db8:2::/48";
/// How often a cell with two endpoints is dialled, at most: one of two endpoints that are chosen by
/// chance is missed by all with a probability of 1 in 500,000.
const MOST: u32 = 20;
/// How long a proxy may take until it serves all Services.
const PATIENCE: Duration = Duration::from_secs(30);

/// How nodes check the source addresses of packets (`rp_filter`, RFC 3704).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReversePath {
    /// A packet must come from the device that the way back leads to.
    Strict,
    /// There must be a way back.
    Loose,
}

/// The cluster, without a proxy, and everybody who dials.
#[derive(Debug)]
pub struct Stage<'a> {
    cluster: &'a Cluster,
    manifests: Manifests,
    callers: BTreeMap<Caller, Client>,
    /// How many direct exchanges with endpoints have followed answers of frontends, from the same ports.
    pub directly: u32,
    _servers: Vec<Running>,
    _host_pod: Cgroup,
}

/// Sets up the cluster, runs `work`, and removes everything.
pub fn within<T>(
    reverse_path: ReversePath,
    work: impl FnOnce(&mut Stage<'_>) -> Result<T>,
) -> Result<T> {
    let plan = [
        NodePlan { name: HERE, number: HERE_NUMBER, pods: vec![("client", 2), ("a", 3)] },
        NodePlan { name: THERE, number: THERE_NUMBER, pods: vec![("remote", 2), ("b", 3)] },
        NodePlan { name: OUTSIDE, number: OUTSIDE_NUMBER, pods: vec![] },
    ];
    let mut result = None;
    lab::within(&plan, |cluster| {
        lead(cluster)?;
        for node in [HERE, THERE] {
            set_up(cluster.node_netns(node)?, reverse_path)?;
        }
        let mut servers = cluster.serve(["a", "b"])?;
        for name in [HERE, THERE] {
            let listen = Family::BOTH.map(|family| (node(name, family), 9376).into());
            servers.push(cluster.serve_on(name, &format!("host-{name}"), &listen)?);
        }
        let host_pod = Cgroup::make(cluster.node(HERE)?.cgroup_path(), "host-pod")?;
        let client = |caller: Caller| match caller {
            Caller::Outside => cluster.client_on(OUTSIDE),
            Caller::Host => cluster.client_on(HERE),
            Caller::HostPod => cluster.client_on_in(HERE, &host_pod),
            Caller::PodHere => cluster.pod("client")?.client(),
            Caller::PodThere => cluster.pod("remote")?.client(),
            Caller::Endpoint => cluster.pod("a")?.client(),
        };
        let callers = Caller::VARIANTS.iter().map(|&caller| Ok((caller, client(caller)?)));
        let callers = callers.collect::<Result<_>>()?;
        let mut manifests = Manifests::new(cluster.folder())?;
        for object in objects::all(cluster)? {
            manifests.put(object);
        }
        manifests.write()?;
        let mut stage = Stage {
            cluster,
            manifests,
            callers,
            directly: 0,
            _servers: servers,
            _host_pod: host_pod,
        };
        result = Some(work(&mut stage)?);
        Ok(())
    })?;
    result.context("what went well has a result")
}

/// A kube-proxy on each node.
#[derive(Debug)]
pub struct KubeProxy {
    /// The program.
    pub program: Program,
    /// They end before their API server does.
    _processes: Vec<Running>,
    _server: FakeApi,
}

impl KubeProxy {
    /// Ends it. Its rules stay.
    #[must_use]
    pub fn stop(self) -> Program {
        self.program
    }
}

/// Leads the packets of the client outside to node here, and none to pods. What a node leaves
/// untranslated ends on the fabric.
fn lead(cluster: &Cluster) -> Result<()> {
    let (via4, via6) = (node4(HERE_NUMBER), node6(HERE_NUMBER));
    let mut lines: Vec<_> = ["10.96.0.0/12", "192.0.2.0/24", "198.51.100.0/24"]
        .iter()
        .map(|range| format!("route add {range} via {via4}"))
        .collect();
    lines.extend(
        ["fd00:96::/112", "2001:db8:1::/64", "2001:db8:2::/64"]
            .iter()
            .map(|range| format!("route add {range} via {via6}")),
    );
    for number in [HERE_NUMBER, THERE_NUMBER] {
        lines.push(format!("route del 10.244.{number}.0/24"));
        lines.push(format!("route del fd00:244:{number}::/64"));
    }
    cluster.ip_on(OUTSIDE, &lines)?;
    let ends = ["192.0.2.0/24", "198.51.100.0/24", "2001:db8::/32"];
    cluster.fabric().ip(&ends.map(|range| format!("route add blackhole {range}")))
}

/// Sets how a node checks source addresses, and lets it send any number of ICMP errors: the table has
/// hundreds of refusals for one client.
fn set_up(netns: &NetNs, reverse_path: ReversePath) -> Result<()> {
    let value = match reverse_path {
        ReversePath::Strict => "1",
        ReversePath::Loose => "2",
    };
    netns.run(|| {
        for device in fs::read_dir("/proc/sys/net/ipv4/conf")? {
            fs::write(device?.path().join("rp_filter"), value)?;
        }
        Ok(())
    })?;
    netns.set(&[
        ("ipv4/icmp_ratelimit", "0"),
        ("ipv4/icmp_msgs_per_sec", "1000000"),
        ("ipv4/icmp_msgs_burst", "1000000"),
        ("ipv6/icmp/ratelimit", "0"),
    ])
}

/// The name of an address that a server has seen. What a node sends to its own pods has the address of
/// its end of their link.
fn name(cluster: &Cluster, server: &str, address: IpAddr) -> String {
    let of_node = |number: u8| match address {
        IpAddr::V4(address) => address == node4(number),
        IpAddr::V6(address) => address == node6(number),
    };
    let nodes = [(HERE_NUMBER, HERE), (THERE_NUMBER, THERE), (OUTSIDE_NUMBER, OUTSIDE)];
    if let Some((_, name)) = nodes.iter().find(|(number, _)| of_node(*number)) {
        return (*name).to_owned();
    }
    if let (Ok(pod), true) = (cluster.pod(server), address == GATEWAY4) {
        return pod.node.clone();
    }
    let is_pod = |pod: &&crate::pod::Pod| address == pod.ipv4 || address == pod.ipv6;
    cluster.pods().find(is_pod).map_or_else(|| address.to_string(), |pod| pod.name.clone())
}

impl<'a> Stage<'a> {
    /// Dials cells, everybody at once. Affine cells are levelled by those without affinity, which must
    /// be among the cells.
    ///
    /// # Errors
    /// After an answer, an endpoint does not answer the same port of the same client, who dials it directly.
    pub fn measure(&mut self, cells: &[Cell]) -> Result<Table> {
        self.settle(cells)?;
        let cluster = self.cluster;
        let directly = AtomicU32::new(0);
        let parts: Vec<Vec<_>> = thread::scope(|scope| {
            let measure = |(caller, client): (&Caller, &'_ mut Client)| {
                let own: Vec<_> = cells.iter().filter(|it| it.caller == *caller).copied().collect();
                let dials = own.iter().map(|cell| dial(cluster, cell)).collect::<Result<_>>()?;
                let dialled = client.dial(dials)?;
                ensure!(dialled.len() == own.len(), "an answer for each cell");
                let lost: Vec<_> = zip(&own, &dialled)
                    .filter(|(_, it)| !it.then_failed.is_empty())
                    .map(|(cell, it)| format!("{}: {:?}", cell.names().join(" "), it.then_failed))
                    .collect();
                ensure!(lost.is_empty(), "directly after a frontend:\n{}", lost.join("\n"));
                directly
                    .fetch_add(dialled.iter().map(|it| it.then_answered).sum(), Ordering::Relaxed);
                let outcome = |dialled: &Dialled| {
                    Outcome::new(dialled, |server, it| name(cluster, server, it))
                };
                let outcomes: Vec<_> = dialled.iter().map(outcome).collect();
                Ok(own.into_iter().zip(outcomes).collect())
            };
            let threads: Vec<_> =
                self.callers.iter_mut().map(|it| scope.spawn(move || measure(it))).collect();
            threads.into_iter().map(joined).collect::<Result<_>>()
        })?;
        self.directly += directly.into_inner();
        let mut table = Table(parts.into_iter().flatten().collect());
        table.level();
        Ok(table)
    }

    /// Has everybody use each Service with session affinity, one of its addresses after the other. Of exchanges that
    /// begin at once, each may go to another endpoint until one is answered, through whichever address.
    fn settle(&mut self, cells: &[Cell]) -> Result<()> {
        let cluster = self.cluster;
        let settle = |(caller, client): (&Caller, &mut Client)| -> Result<()> {
            for target in Target::VARIANTS {
                let dials = cells
                    .iter()
                    .filter(|it| it.service.variant == Variant::Affinity)
                    .filter(|it| (it.caller, it.target) == (*caller, *target))
                    .map(|cell| {
                        Ok(Dial { enough: 1, most: 1, then: vec![], ..dial(cluster, cell)? })
                    })
                    .collect::<Result<_>>()?;
                client.dial(dials)?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            // The host is one client, also in its pod.
            let callers = self.callers.iter_mut().filter(|(caller, _)| **caller != Caller::HostPod);
            let threads: Vec<_> = callers.map(|it| scope.spawn(|| settle(it))).collect();
            threads.into_iter().try_for_each(joined)
        })
    }

    /// Starts kube-proxy on both nodes, runs `work`, and ends it; its rules stay.
    ///
    /// # Errors
    /// The environment names no kube-proxy 1.20, or it does not serve.
    pub fn with_kube_proxy<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let _running = self.start_kube_proxy()?;
        work(self)
    }

    /// Starts kube-proxy on both nodes. Dropping it ends it; its rules stay.
    ///
    /// # Errors
    /// The environment names no kube-proxy 1.20, or it does not serve.
    pub fn start_kube_proxy(&mut self) -> Result<KubeProxy> {
        let program = Program::given(self.cluster, HERE)?
            .with_context(|| format!("{VARIABLE} names no kube-proxy 1.20"))?;
        self.start_kube_proxy_again(program)
    }

    /// The same with a program that ran before.
    pub fn start_kube_proxy_again(&mut self, program: Program) -> Result<KubeProxy> {
        let cluster = self.cluster;
        let server = serve(cluster)?;
        let mut processes = Vec::new();
        for (node, number) in [(HERE, HERE_NUMBER), (THERE, THERE_NUMBER)] {
            rule_as_kubelet(cluster, node, &program)?;
            let features = ",IPv6DualStack=true";
            let mut command =
                program.command(cluster, (node, node4(number)), &server, features, PODS)?;
            let log = cluster.folder().join(format!("kube-proxy-{node}.log"));
            processes.push(spawn_logged(&mut command, &log)?);
        }
        // Another proxy may answer meanwhile.
        for node in [HERE, THERE] {
            program.wait_for_node_port(cluster, node, Service::plain().node_port(), PATIENCE)?;
        }
        self.wait_until_served()?;
        Ok(KubeProxy { program, _processes: processes, _server: server })
    }

    /// Removes the rules of kube-proxy, which has ended, as `kube-proxy --cleanup` does.
    pub fn remove_rules(&self, program: &Program) -> Result<()> {
        [HERE, THERE].into_iter().try_for_each(|node| program.clean_up(self.cluster, node))
    }

    /// Starts topo-lb in place of kube-proxy on both nodes, runs `work`, and removes it again.
    pub fn with_topo_lb<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let _agents = self.start_topo_lb()?;
        work(self)
    }

    /// The same with direct return; each node has proved the other.
    pub fn with_direct_return<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let agents = self.start_agents(&[
            ("--kube-proxy-replacement", ""),
            ("--external-ip-ranges", EXTERNAL_IPS),
            ("--direct-return", "auto"),
            // A table for each Service, protocol and family.
            ("--max-endpoints", "1048576"),
        ])?;
        agents.iter().try_for_each(|agent| wait_for_proofs(agent, Family::BOTH.len()))?;
        work(self)
    }

    /// Starts topo-lb in place of kube-proxy on both nodes.
    pub fn start_topo_lb(&mut self) -> Result<Vec<Agent<'a>>> {
        self.start_agents(&[
            ("--kube-proxy-replacement", ""),
            ("--external-ip-ranges", EXTERNAL_IPS),
        ])
    }

    /// Starts agents with these flags on both nodes.
    pub fn start_agents(
        &mut self,
        flags: &[(&'static str, &'static str)],
    ) -> Result<Vec<Agent<'a>>> {
        let cluster = self.cluster;
        let binary = Binary::new(requirements::agent()?);
        let mut agents = Vec::new();
        for node in [HERE, THERE] {
            let mut agent = Agent::prepare(&binary, cluster, node, self.manifests.folder())?;
            flags.iter().for_each(|(flag, value)| agent.set(flag, value));
            agent.launch()?;
            agents.push(agent);
        }
        for agent in &mut agents {
            agent.wait_until_ready()?;
        }
        self.wait_until_served()?;
        Ok(agents)
    }

    /// The network namespace of a node.
    pub fn node(&self, name: &str) -> Result<&NetNs> {
        self.cluster.node_netns(name)
    }

    /// The client of a caller.
    pub fn client(&mut self, caller: Caller) -> Result<&mut Client> {
        self.callers.get_mut(&caller).context("everybody has a client")
    }

    /// Waits until a Service answers on both nodes, by all protocols and families: a proxy writes all
    /// Services at once.
    fn wait_until_served(&mut self) -> Result<()> {
        let service = Service::plain();
        let callers = [Caller::PodHere, Caller::PodThere];
        let cells: Vec<_> = Cell::all()
            .filter(|it| it.service == service && it.target == Target::ClusterIp)
            .filter(|it| callers.contains(&it.caller))
            .collect();
        until("answers of a Service on both nodes", PATIENCE, || {
            let table = self.measure(&cells)?;
            let open = table.0.into_iter().find(|(_, outcome)| outcome.answers().next().is_none());
            Ok(match open {
                None => Ok(()),
                Some((cell, outcome)) => Err(format!("{}: {outcome}", cell.names().join(" "))),
            })
        })?;
        Ok(())
    }
}

/// What a thread returns.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// What a client has to do for a cell.
fn dial(cluster: &Cluster, cell: &Cell) -> Result<Dial> {
    let enough = match cell.service.endpoints {
        Endpoints::Both | Endpoints::Terminating | Endpoints::Draining => 2,
        _ => 1,
    };
    let most = if enough > 1 { MOST } else { 1 };
    // The host's clients share its ports. Those of tc, node ports and masquerade follow these: the packets of
    // two clients with one source could not be told apart.
    let ports = if cell.caller == Caller::HostPod { 1_100..=6_099 } else { 6_100..=11_999 };
    // Nothing leads the client outside to pods.
    let then = match cell.caller {
        Caller::Outside => vec![],
        _ => objects::servers(cluster, cell.service, cell.family)?,
    };
    Ok(Dial { transport: cell.transport, to: cell.address(), ports, enough, most, then })
}

/// An API server of Kubernetes 1.20 on the fabric.
fn serve(cluster: &Cluster) -> Result<FakeApi> {
    let address = (fabric4(), 0);
    let listener = cluster
        .fabric()
        .run(|| std::net::TcpListener::bind(address).context("cannot listen on the fabric"))?;
    let server = FakeApi::start(listener, &[NODES, SERVICES, OLD_SLICES])?;
    for object in objects::all(cluster)?.into_iter().map(kubernetes_1_20::form) {
        let path = match object["kind"].as_str() {
            Some("Node") => NODES,
            Some("Service") => SERVICES,
            _ => OLD_SLICES,
        };
        server.fill(path, [object]);
    }
    Ok(server)
}

/// Makes the rules that kube-proxy 1.20 expects of the kubelet (pkg/kubelet/kubelet_network_linux.go,
/// `syncNetworkUtil`): without them nothing drops what kube-proxy marks for it.
fn rule_as_kubelet(cluster: &Cluster, node: &str, program: &Program) -> Result<()> {
    let local = "-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m conntrack ! --ctstate \
                 RELATED,ESTABLISHED,DNAT -j DROP\n";
    for (restore, local) in [("iptables-restore", local), ("ip6tables-restore", "")] {
        let rules = format!(
            "*nat\n:KUBE-MARK-DROP - [0:0]\n-A KUBE-MARK-DROP -j MARK --or-mark 0x8000\nCOMMIT\n\
             *filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A OUTPUT -j KUBE-FIREWALL\n\
             -A KUBE-FIREWALL -m mark --mark 0x8000/0x8000 -j DROP\n{local}COMMIT\n"
        );
        // The path of the environment applies only to children of what it is given to.
        let mut command = Command::new("env");
        command.arg(restore).arg("--noflush").envs(program.iptables.environment());
        cluster.beside(cluster.node(node)?, &mut command)?;
        let output = fed(command.stdout(std::process::Stdio::null()), &rules)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{restore} refuses the kubelet's rules: {said}");
    }
    Ok(())
}

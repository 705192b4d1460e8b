//! For comparison: kube-proxy 1.20 in mode iptables with Service Topology, as on a plain cluster.
//! 1.20 is the last version but one with `spec.topologyKeys` (removed in Kubernetes 1.22).

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::cgroup;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::fake_api::FakeApi;
use topo_lb_tests::kubernetes_1_20;
use topo_lb_tests::population::{Population, SERVICE_PORT};
use topo_lb_tests::process::{Running, printed, spawn_logged};
use topo_lb_tests::wait::until;
use topo_lb_tests::wiring::node4;

use crate::api;
use crate::exchange::{Act, Dialler, Targets};
use crate::ground::{Ground, KUBE_PROXY, KUBE_PROXY_NUMBER, POD_RANGE};
use crate::iptables::Iptables;

/// The variable that names the program.
pub(crate) const VARIABLE: &str = "TOPO_LB_KUBE_PROXY";
/// The name in its figures.
pub(crate) const NAME: &str = "kube-proxy 1.20 iptables";

/// How long kube-proxy may take until it is idle, with the most Services.
const PATIENCE: Duration = Duration::from_secs(300);
/// kube-proxy counts as idle when for so long it has run no iptables and used less than a fiftieth
/// of the time. Longer than the second between two synchronisations (`--iptables-min-sync-period`).
const REST: Duration = Duration::from_secs(3);

/// The program, and the iptables for it.
#[derive(Debug)]
pub(crate) struct Program {
    program: PathBuf,
    pub(crate) iptables: Iptables,
}

impl Program {
    /// The program that the environment names, if any.
    ///
    /// # Errors
    /// It has another version, or a program that it calls is not installed.
    pub(crate) fn given(cluster: &Cluster) -> Result<Option<Self>> {
        let Some(program) = env::var_os(VARIABLE).filter(|path| !path.is_empty()) else {
            return Ok(None);
        };
        let said = printed(Command::new(&program).arg("--version"))
            .with_context(|| format!("{VARIABLE} does not name a kube-proxy"))?;
        ensure!(
            said.contains(" v1.20."),
            "{VARIABLE} names {}, and what is measured is 1.20: `cargo xtask bench` builds one",
            said.trim()
        );
        Ok(Some(Self { program: program.into(), iptables: Iptables::find(cluster)? }))
    }

    /// Starts it on its node. Waits until a client there reaches the last Service, and until
    /// kube-proxy is idle: it writes all rules for the Services, and again when it knows its node.
    pub(crate) fn start<'a>(
        &self,
        ground: &Ground<'a>,
        population: &Population,
        dialler: &mut Dialler,
    ) -> Result<KubeProxy<'a>> {
        let cluster = ground.cluster;
        let last = Population::frontend(population.services.saturating_sub(1));
        let netns = cluster.node_netns(KUBE_PROXY)?;
        let server = api::start(netns, population, kubernetes_1_20::form)?;
        let mut command = Command::new(&self.program);
        command
            .envs(self.iptables.environment())
            .arg(format!("--master={}", server.url()))
            .arg("--kube-api-content-type=application/json")
            .arg(format!("--hostname-override={KUBE_PROXY}"))
            .arg(format!("--bind-address={}", node4(KUBE_PROXY_NUMBER)))
            .arg("--proxy-mode=iptables")
            .arg("--feature-gates=ServiceTopology=true,EndpointSliceProxying=true")
            .arg(format!("--cluster-cidr={POD_RANGE}"))
            // The limit applies to the whole machine, not only to this node.
            .arg("--conntrack-max-per-core=0");
        cluster.beside(cluster.node(KUBE_PROXY)?, &mut command)?;
        let processes = cgroup::processes(cluster.agents().path()).len() + 1;
        let begun = Instant::now();
        let process = spawn_logged(&mut command, &cluster.folder().join("kube-proxy.log"))?;
        let (reached, rested) = (Duration::ZERO, Duration::ZERO);
        let mut it = KubeProxy { cluster, process, processes, reached, rested, _server: server };
        it.reach(Targets::one(SocketAddr::from((last, SERVICE_PORT))), dialler)?;
        it.reached = begun.elapsed();
        it.rested = it.rest()? - begun;
        Ok(it)
    }
}

/// kube-proxy on its node. Dropping this ends it and its API server; its rules go with the node.
#[derive(Debug)]
pub(crate) struct KubeProxy<'a> {
    cluster: &'a Cluster,
    process: Running,
    /// The number of processes in the cgroup of agents while kube-proxy runs no iptables.
    processes: usize,
    pub(crate) reached: Duration,
    /// From its start until it was idle.
    pub(crate) rested: Duration,
    _server: FakeApi,
}

impl KubeProxy<'_> {
    fn reach(&mut self, last: Targets, dialler: &mut Dialler) -> Result<()> {
        until("the last Service of kube-proxy", PATIENCE, || {
            self.check()?;
            let answer = dialler.times(Act::Exchange, last, 1).map(drop);
            Ok(answer.map_err(|error| format!("{error:#}")))
        })?;
        Ok(())
    }

    /// Waits until kube-proxy is idle, and returns since when it is.
    fn rest(&mut self) -> Result<Instant> {
        // The cgroup also has kube-proxy's children, and the agent, which is idle.
        let agents = self.cluster.agents();
        let mut rest = (Instant::now(), agents.processor_time()?);
        until("a kube-proxy that rests", PATIENCE, || {
            self.check()?;
            let time = agents.processor_time()?;
            let is_alone = cgroup::processes(agents.path()).len() <= self.processes;
            if !is_alone || time - rest.1 > REST / 50 {
                rest = (Instant::now(), time);
            }
            Ok(if rest.0.elapsed() > REST { Ok(()) } else { Err("it works") })
        })?;
        Ok(rest.0)
    }

    fn check(&mut self) -> Result<()> {
        let ended = self.process.ended().context("cannot wait for kube-proxy")?;
        // Its log is printed with the lab's logs.
        ensure!(ended.is_none(), "kube-proxy has ended: {ended:?}");
        Ok(())
    }
}

//! For comparison: kube-proxy 1.20 on a node of its own.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_fake_api::FakeApi;
use topo_lb_tests::cgroup;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::kube_proxy::Program;
use topo_lb_tests::kubernetes_1_20;
use topo_lb_tests::process::{Running, spawn_logged};
use topo_lb_tests::wait::until;
use topo_lb_tests::wiring::node4;

use crate::api;
use crate::exchange::{Act, Dialler, Targets};
use crate::ground::{Ground, KUBE_PROXY, KUBE_PROXY_NUMBER, POD_RANGE};

/// The name in its figures.
pub(crate) const NAME: &str = "kube-proxy 1.20 iptables";

/// How long kube-proxy may take until it is idle, with the most Services.
const PATIENCE: Duration = Duration::from_secs(300);
/// kube-proxy counts as idle when for so long it has run no iptables and used less than a fiftieth
/// of the time. Longer than the second between two synchronisations (`--iptables-min-sync-period`).
const REST: Duration = Duration::from_secs(3);

/// Starts it on its node, with these objects. Waits until a client reaches `last`, and until
/// kube-proxy is idle: it writes all rules for the Services, and again when it knows its node.
pub(crate) fn start<'a>(
    program: &Program,
    ground: &Ground<'a>,
    objects: impl Iterator<Item = Value>,
    last: SocketAddr,
    dialler: &mut Dialler,
) -> Result<KubeProxy<'a>> {
    let cluster = ground.cluster;
    let netns = cluster.node_netns(KUBE_PROXY)?;
    let server = api::start(netns, objects.map(kubernetes_1_20::form))?;
    let node = (KUBE_PROXY, node4(KUBE_PROXY_NUMBER));
    let mut command = program.command(cluster, node, &server, "", POD_RANGE)?;
    let processes = cgroup::processes(cluster.agents().path()).len() + 1;
    let begun = Instant::now();
    let process = spawn_logged(&mut command, &cluster.folder().join("kube-proxy.log"))?;
    let (reached, rested) = (Duration::ZERO, Duration::ZERO);
    let mut it = KubeProxy { cluster, process, processes, reached, rested, _server: server };
    it.reach(Targets::one(last), dialler)?;
    it.reached = begun.elapsed();
    it.rested = it.rest()? - begun;
    Ok(it)
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
            // Before it writes the rules for a node port, kube-proxy 1.20 listens there, and never
            // answers: this act has a timeout.
            let answer = dialler.times(Act::Keep, last, 1).map(drop);
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

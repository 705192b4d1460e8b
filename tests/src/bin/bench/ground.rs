//! The nodes of all measurements; they differ only in what translates on them.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fs_err as fs;
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary::Binary;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::lab;
use topo_lb_tests::node::NodePlan;
use topo_lb_tests::process::Running;
use topo_lb_tests::requirements;
use topo_lb_tests::wait::{PATIENCE, until};

use crate::exchange::{self, Dialler, PORT};
use topo_lb_tests::population::Population;

pub(crate) const HERE: &str = "here";
pub(crate) const HERE_NUMBER: u8 = 1;
pub(crate) const NFTABLES: &str = "nftables";
pub(crate) const NFTABLES_NUMBER: u8 = 2;
pub(crate) const KUBE_PROXY: &str = "kube-proxy";
pub(crate) const KUBE_PROXY_NUMBER: u8 = 3;
/// A node where nothing translates.
pub(crate) const PLAIN: &str = "plain";
pub(crate) const PLAIN_NUMBER: u8 = 4;
/// A node where nothing translates, and where the kernel tracks connections, as on nodes of most
/// clusters.
pub(crate) const TRACKED: &str = "tracked";
pub(crate) const TRACKED_NUMBER: u8 = 6;
/// The node of the endpoints that are on no other node.
pub(crate) const FAR: &str = "far";
pub(crate) const FAR_NUMBER: u8 = 5;
/// The range of all pod addresses, for kube-proxy's `--cluster-cidr`.
pub(crate) const POD_RANGE: &str = "10.244.0.0/16";
/// The node's device of the client's pod.
pub(crate) const CLIENT_DEVICE: &str = "pod2";
/// The node's device of the pod `a`.
pub(crate) const SERVER_DEVICE: &str = "pod3";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Effort {
    /// Only enough to show that the bench works.
    pub(crate) quick: bool,
}

impl Effort {
    pub(crate) fn of<T>(self, quick: T, full: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Numbers of Services, for curves.
    pub(crate) fn sizes(self) -> &'static [u32] {
        self.of(&[10, 1_000], &[10, 1_000, 10_000, 50_000])
    }
}

#[derive(Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) binary: Binary,
    _servers: Vec<Running>,
}

/// Sets up the nodes, runs `work`, and removes everything.
pub(crate) fn within<T>(work: impl FnOnce(&Ground<'_>) -> Result<T>) -> Result<T> {
    let plan = [
        NodePlan { name: HERE, number: HERE_NUMBER, pods: vec![("client", 2), ("a", 3), ("b", 4)] },
        NodePlan {
            name: NFTABLES,
            number: NFTABLES_NUMBER,
            pods: vec![("client2", 2), ("a2", 3), ("b2", 4)],
        },
        NodePlan {
            name: KUBE_PROXY,
            number: KUBE_PROXY_NUMBER,
            pods: vec![("client3", 2), ("a3", 3), ("b3", 4)],
        },
        NodePlan { name: PLAIN, number: PLAIN_NUMBER, pods: vec![("b4", 4)] },
        NodePlan { name: TRACKED, number: TRACKED_NUMBER, pods: vec![("b6", 4)] },
        NodePlan { name: FAR, number: FAR_NUMBER, pods: vec![("a5", 3), ("b5", 4), ("c5", 5)] },
    ];
    let binary = Binary::new(requirements::agent()?);
    let mut found = None;
    lab::within(&plan, |cluster| {
        let servers = ["a", "b", "a2", "b2", "a3", "b3", "b4", "a5", "b5", "c5", "b6"];
        let servers = servers.into_iter().map(|pod| serve(cluster, pod)).collect::<Result<_>>()?;
        let ground = Ground { cluster, binary, _servers: servers };
        found = Some(work(&ground)?);
        Ok(())
    })?;
    found.context("what went well has a result")
}

fn serve(cluster: &Cluster, pod: &str) -> Result<Running> {
    cluster.pod(pod)?.netns().set(&[("core/somaxconn", &exchange::HELD.to_string())])?;
    let mut server = cluster.pod(pod)?.spawn(exchange::server()?)?;
    server.wait_for_line("listening").with_context(|| format!("no server in {pod}"))?;
    Ok(server)
}

impl<'a> Ground<'a> {
    /// A client with connections that pass the node's hooks.
    pub(crate) fn inside(&self, pod: &str) -> Result<Dialler> {
        Dialler::new(self.cluster.pod(pod)?.spawn(exchange::dialler()?)?)
    }

    /// A client in the same pod, outside every cgroup with hooks: only tc can translate for it.
    pub(crate) fn outside(&self, pod: &str) -> Result<Dialler> {
        Dialler::new(self.cluster.spawn_outside(pod, exchange::dialler()?)?)
    }

    /// A client outside of all nodes.
    pub(crate) fn beyond(&self) -> Result<Dialler> {
        Dialler::new(self.cluster.spawn_beyond(exchange::dialler()?)?)
    }

    /// A population as seen from a node; the endpoints are the node's two servers.
    pub(crate) fn population(&self, services: u32, servers: [&str; 2]) -> Result<Population> {
        let [a, b] = [self.cluster.pod(servers[0])?, self.cluster.pod(servers[1])?];
        let (addresses, port) = (vec![a.ipv4, b.ipv4], PORT);
        Ok(Population { addresses, port, ..Population::new(&a.node, 3, services, 2) })
    }

    /// Writes manifests of a population and `others`.
    pub(crate) fn manifests(&self, population: &Population, others: &[Value]) -> Result<PathBuf> {
        let path = self.cluster.folder().join("population.json");
        fs::write(&path, population.list(others))?;
        Ok(path)
    }

    /// A running agent on the first node.
    pub(crate) fn agent(
        &self,
        source: (&'static str, &Path),
        flags: &[(&'static str, &str)],
    ) -> Result<Agent<'a>> {
        let mut agent = Agent::prepare_from(&self.binary, self.cluster, HERE, source)?;
        for (flag, value) in flags {
            agent.set(flag, value);
        }
        agent.launch()?;
        agent.wait_until_ready()?;
        Ok(agent)
    }

    /// Waits until a client reaches a Service.
    pub(crate) fn reach(&self, dialler: &mut Dialler, targets: exchange::Targets) -> Result<()> {
        until("the first answer of a Service", PATIENCE, || {
            Ok(match dialler.times(exchange::Act::Exchange, targets, 1) {
                Ok(_) => Ok(()),
                Err(error) => Err(format!("{error:#}")),
            })
        })?;
        Ok(())
    }
}

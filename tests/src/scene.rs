//! The cluster of most suites: a client's node with its agent, and endpoints at every distance.
//!
//! | node | zone | region | rack | pods |
//! |---|---|---|---|---|
//! | here | zone-1 | region-1 | rack-1 | client, a |
//! | beside | zone-1 | region-1 | rack-2 | b |
//! | there | zone-2 | region-1 | rack-2 | c |
//! | beyond | zone-3 | region-2 | rack-3 | d |
//!
//! | Service | at | endpoints |
//! |---|---|---|
//! | web | [`WEB4`], [`WEB6`], TCP and UDP | a, b, c, d |
//! | echo | [`ECHO4`], [`ECHO6`], UDP | a, b, c, d |
//! | empty | [`EMPTY4`], [`EMPTY6`], TCP and UDP | none |
//!
//! "untouched" answers connections to these that are not translated.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::agent::Agent;
use crate::binary::{Binary, row};
use crate::client::Client;
use crate::cluster::Cluster;
use crate::lab;
use crate::manifest::{self, Manifests, Port, endpoint, service, slice};
use crate::node::NodePlan;
use crate::pod::Pod;
use crate::process::{Running, printed};
use crate::requirements::{self, has_ipv6};
use crate::traffic::Via;
use crate::wait::until;

/// The ClusterIP of `web`.
pub const WEB4: &str = "10.96.1.1";
/// Its IPv6 ClusterIP.
pub const WEB6: &str = "fd00:96::101";
/// The ClusterIP of `echo`.
pub const ECHO4: &str = "10.96.1.2";
/// Its IPv6 ClusterIP.
pub const ECHO6: &str = "fd00:96::102";
/// The ClusterIP of `empty`.
pub const EMPTY4: &str = "10.96.1.3";
/// Its IPv6 ClusterIP.
pub const EMPTY6: &str = "fd00:96::103";

/// The node with the client and the agent.
pub const HERE: &str = "here";
/// Every endpoint and its node, from near to far.
pub const PODS: [(&str, &str); 4] = [("a", HERE), ("b", "beside"), ("c", "there"), ("d", "beyond")];
/// All endpoints of `web` and `echo`.
pub const ALL: [&str; 4] = ["a", "b", "c", "d"];
/// The annotation for topology keys.
pub const KEYS: &str = "topo-lb.io/topology-keys";
/// The standard label for zones.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// The standard label for regions.
pub const REGION: &str = "topology.kubernetes.io/region";

const SERVED: [Port<'_>; 2] = [("http", 9376, "TCP"), ("udp", 9376, "UDP")];

/// How long a change may take to reach the kernel: milliseconds, but the machine may be busy.
pub const FOLLOWS: Duration = Duration::from_secs(5);

/// The cluster with everything in it running.
#[derive(Debug)]
pub struct Scene<'a> {
    /// The agent's binary.
    pub binary: Binary,
    /// The nodes and pods.
    pub cluster: &'a Cluster,
    /// The agent's manifests.
    pub manifests: Manifests,
    /// The client, on the agent's node.
    pub client: Client,
    /// The agent.
    pub agent: Agent<'a>,
    _servers: Vec<Running>,
}

/// Sets up the cluster, runs `body` with a ready agent, and removes everything.
pub fn play(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    idle(|scene| {
        scene.agent.resume()?;
        body(scene)
    })
}

/// Like [`play`], with an agent that does not run yet.
pub fn idle(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    prepared(|_| {}, body)
}

/// Like [`play`], with tc on the devices of all pods.
pub fn play_with_machines(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    idle(|scene| {
        scene.agent.set("--tc-devices", "pod*");
        scene.agent.set("--max-connections", "16384");
        scene.agent.resume()?;
        body(scene)
    })
}

/// Like [`idle`], with manifests changed by `change`.
pub fn prepared(
    change: impl FnOnce(&mut Manifests),
    body: impl FnOnce(&mut Scene<'_>) -> Result<()>,
) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    let plan = [
        NodePlan { name: HERE, number: 1, pods: vec![("client", 2), ("a", 3)] },
        NodePlan { name: "beside", number: 2, pods: vec![("b", 2)] },
        NodePlan { name: "there", number: 3, pods: vec![("c", 2)] },
        NodePlan { name: "beyond", number: 4, pods: vec![("d", 2)] },
    ];
    lab::within(&plan, |cluster| {
        let mut manifests = Manifests::new(cluster.folder())?;
        describe(&mut manifests, cluster)?;
        change(&mut manifests);
        manifests.write()?;
        let mut servers = cluster.serve(ALL)?;
        servers.push(cluster.serve_untouched(&untouched()?)?);
        let client = cluster.pod("client")?.client()?;
        let mut agent = Agent::prepare(&binary, cluster, HERE, manifests.folder())?;
        // Small maps, as many labs are made; but large enough that no flow of a test is evicted.
        agent.set("--max-services", "512");
        agent.set("--max-endpoints", "512");
        agent.set("--max-flows", "16384");
        body(&mut Scene { binary, cluster, manifests, client, agent, _servers: servers })
    })
}

fn describe(manifests: &mut Manifests, cluster: &Cluster) -> Result<()> {
    let places = [
        (HERE, "zone-1", "region-1", "rack-1"),
        ("beside", "zone-1", "region-1", "rack-2"),
        ("there", "zone-2", "region-1", "rack-2"),
        ("beyond", "zone-3", "region-2", "rack-3"),
    ];
    for (name, zone, region, rack) in places {
        let labels = [(ZONE, zone), (REGION, region), ("example.com/rack", rack)];
        manifests.put(manifest::node(name, &labels));
    }
    let both = [("http", 80, "TCP"), ("udp", 80, "UDP")];
    manifests.put(service("web", &[WEB4, WEB6], &both, &[]));
    manifests.put(service("echo", &[ECHO4, ECHO6], &both[1..], &[]));
    manifests.put(service("empty", &[EMPTY4, EMPTY6], &both, &[]));
    put_endpoints(manifests, cluster, "web", &["a", "b", "c", "d"])?;
    put_endpoints(manifests, cluster, "echo", &["a", "b", "c", "d"])
}

/// Makes `pods` the endpoints of a Service, in both families.
pub fn put_endpoints(
    manifests: &mut Manifests,
    cluster: &Cluster,
    service: &str,
    pods: &[&str],
) -> Result<()> {
    type Address = fn(&Pod) -> String;
    let families: [(&str, Address); 2] =
        [("IPv4", |pod| pod.ipv4.to_string()), ("IPv6", |pod| pod.ipv6.to_string())];
    for (family, address) in families {
        let endpoints: Result<Vec<Value>> = pods
            .iter()
            .map(|&name| {
                let pod = cluster.pod(name)?;
                Ok(endpoint(&address(pod), &pod.node, name))
            })
            .collect();
        manifests.put(slice(service, family, &SERVED, &endpoints?));
    }
    Ok(())
}

/// The addresses of "untouched": the ports of every Service, and one that no Service has.
fn untouched() -> Result<Vec<SocketAddr>> {
    let mut addresses = Vec::new();
    for address in [WEB4, ECHO4, EMPTY4, WEB6, ECHO6, EMPTY6, NOBODY4, NOBODY6] {
        for port in [80, 81] {
            addresses.push(SocketAddr::new(address.parse()?, port));
        }
    }
    Ok(addresses)
}

/// An address of the Service range that no Service has.
pub const NOBODY4: &str = "10.96.1.99";
/// An IPv6 address of the Service range that no Service has.
pub const NOBODY6: &str = "fd00:96::199";

/// The socket address of a ClusterIP at port 80.
pub fn at(address: &str) -> Result<SocketAddr> {
    Ok(SocketAddr::new(address.parse().with_context(|| format!("{address} is no address"))?, 80))
}

/// The IPv4-mapped IPv6 form of an IPv4 address, at port 80.
pub fn mapped(address: &str) -> Result<SocketAddr> {
    let address: std::net::Ipv4Addr =
        address.parse().with_context(|| format!("{address} is no IPv4 address"))?;
    Ok(SocketAddr::from((address.to_ipv6_mapped(), 80)))
}

/// Those of these addresses that sockets of this kernel take.
#[must_use]
pub fn known<const N: usize>(all: [SocketAddr; N]) -> Vec<SocketAddr> {
    all.into_iter().filter(|it| it.is_ipv4() || has_ipv6()).collect()
}

/// `web` and `echo`, for each kind of socket of this kernel: IPv4, IPv6, and IPv4 by an IPv6 socket.
pub fn pairs() -> Result<Vec<(SocketAddr, SocketAddr)>> {
    let web = known([at(WEB4)?, at(WEB6)?, mapped(WEB4)?]);
    let echo = known([at(ECHO4)?, at(ECHO6)?, mapped(ECHO4)?]);
    Ok(web.into_iter().zip(echo).collect())
}

impl Scene<'_> {
    /// Changes the manifests, and writes them.
    pub fn change(&mut self, change: impl FnOnce(&mut Manifests) -> Result<()>) -> Result<()> {
        change(&mut self.manifests)?;
        self.manifests.write()
    }

    /// Makes `pods` the endpoints of a Service, and writes the manifests.
    pub fn set_endpoints(&mut self, service: &str, pods: &[&str]) -> Result<()> {
        put_endpoints(&mut self.manifests, self.cluster, service, pods)?;
        self.manifests.write()
    }

    /// Adds or replaces an object, and writes the manifests.
    pub fn put(&mut self, object: Value) -> Result<()> {
        self.manifests.put(object);
        self.manifests.write()
    }

    /// Removes an object, and writes the manifests.
    pub fn remove(&mut self, kind: &str, name: &str) -> Result<()> {
        self.manifests.remove(kind, name);
        self.manifests.write()
    }

    /// Sets whether a pod is ready, and writes the manifests.
    pub fn set_ready(&mut self, pod: &str, ready: bool) -> Result<()> {
        self.manifests.set_ready(pod, ready);
        self.manifests.write()
    }

    /// [`Client::wait_for`] of the client on the agent's node, within [`FOLLOWS`].
    pub fn wait_for(&mut self, via: Via, to: SocketAddr, pods: &[&str]) -> Result<Duration> {
        self.client.wait_for(via, to, pods, FOLLOWS)
    }

    /// [`Client::expect`] of the client on the agent's node.
    pub fn expect(&mut self, via: Via, to: SocketAddr, pods: &[&str]) -> Result<()> {
        self.client.expect(via, to, pods)
    }

    /// Checks that every endpoint of `web` answers, through every kind of socket.
    pub fn expect_web(&mut self) -> Result<()> {
        for via in [Via::Http, Via::UdpConnected, Via::Udp] {
            self.expect(via, at(WEB4)?, &ALL)?;
            self.expect(via, at(WEB6)?, &ALL)?;
        }
        Ok(())
    }

    /// The first port of a Service in the output of `topo-lb explain`.
    pub fn explained(&self, service: &str) -> Result<Value> {
        let report = self.binary.explain(self.manifests.folder(), HERE)?;
        row(&report["services"], "name", service).cloned()
    }

    /// Waits for the agent's first count of open connections: from then on budgets hold.
    pub fn wait_for_quota(&self) -> Result<()> {
        until("a quota", FOLLOWS, || {
            let quota = self.dump("quota")?;
            let until = quota[0]["formatted"]["value"]["until"].as_u64();
            let is_there = until.context("a quota has an end")? != 0;
            Ok(if is_there { Ok(()) } else { Err(quota) })
        })?;
        Ok(())
    }

    /// The content of one of the agent's maps, from bpftool.
    pub fn dump(&self, map: &str) -> Result<Value> {
        requirements::command("bpftool", "bpftool")?;
        let mut command = Command::new("bpftool");
        command.args(["-j", "map", "dump", "pinned"]).arg(self.agent.pins().join(map));
        serde_json::from_str(&printed(&mut command)?).context("bpftool printed no JSON")
    }
}

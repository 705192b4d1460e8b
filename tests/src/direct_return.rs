//! A cluster with an agent on each node, clients outside, and load balancer IPs that lead to any of the nodes.

use std::io::{Read, Write as _};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use topo_lb_core::cluster::Family;

use crate::agent::Agent;
use crate::client::Client;
use crate::http::Answer;
use crate::manifest::{endpoint, service, slice};
use crate::outside::{BALANCER, idle};
use crate::requirements;
use crate::scene::Scene;
use crate::wait::patient;

/// The nodes besides [`HERE`](crate::scene::HERE).
pub const OTHERS: [&str; 3] = ["beside", "there", "beyond"];
/// The addresses of all nodes, [`HERE`](crate::scene::HERE) first.
pub const NODES: [[&str; 2]; 4] = [
    ["172.30.0.2", "fd00:172::2"],
    ["172.30.0.3", "fd00:172::3"],
    ["172.30.0.4", "fd00:172::4"],
    ["172.30.0.5", "fd00:172::5"],
];
/// How long until all nodes are proved.
pub const PROVED: Duration = Duration::from_secs(10);

/// How answers of endpoints on other nodes get to clients outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Returns {
    /// From the endpoint's node. Each node has proved the others.
    Directly,
    /// By the node that gave the connection its source.
    BySource,
}

/// The scene with an agent on each node, in place of kube-proxy. A client outside dials by the node of the first one.
///
/// # Errors
/// The scene cannot be made, or `body` fails.
pub fn play(
    returns: Returns,
    body: impl FnOnce(&mut Scene<'_>, &mut Vec<Agent<'_>>, Client) -> Result<()>,
) -> Result<()> {
    requirements::command("nft", "nftables")?;
    idle(|scene| {
        let folder = scene.manifests.folder();
        let mut others = Vec::new();
        for node in OTHERS {
            others.push(Agent::prepare(&scene.binary, scene.cluster, node, folder)?);
        }
        for agent in others.iter_mut().chain([&mut scene.agent]) {
            for (flag, value) in [
                ("--kube-proxy-replacement", ""),
                ("--direct-return", if returns == Returns::Directly { "auto" } else { "off" }),
                ("--max-connections", "65536"),
                ("--max-services", "512"),
                // Tables of four endpoints have 1,601 slots.
                ("--max-endpoints", "16384"),
                ("--max-flows", "65536"),
            ] {
                agent.set(flag, value);
            }
            agent.launch()?;
        }
        scene.agent.wait_until_ready()?;
        others.iter_mut().try_for_each(Agent::wait_until_ready)?;
        if returns == Returns::Directly {
            let ways = OTHERS.len() * Family::BOTH.len();
            others.iter().chain([&scene.agent]).try_for_each(|it| wait_for_proofs(it, ways))?;
        }
        let client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        body(scene, &mut others, client)
    })
}

/// Asks a pod's server by HTTP for its name, and waits so long for the answer (see [`patient`]).
///
/// # Errors
/// There is none in time.
pub fn ask(mut stream: &TcpStream, limit: Duration) -> Result<String> {
    stream.set_read_timeout(Some(patient(limit)))?;
    stream.write_all(REQUEST)?;
    answer(stream)
}

/// What a client sends.
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n";

/// The pod that a whole answer names.
///
/// # Errors
/// It is none.
pub fn answer(mut stream: impl Read) -> Result<String> {
    let mut bytes = [0; 512];
    let read = stream.read(&mut bytes)?;
    named(&bytes[..read])
}

/// The same of bytes.
///
/// # Errors
/// They are none.
pub fn named(answer: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(answer)?;
    let (_, name) = text.split_once("\r\n\r\n").with_context(|| format!("{text:?}"))?;
    Ok(name.to_owned())
}

/// Waits until an agent has proved all nodes that it asks, each by each version of IP: at least so many `ways`.
///
/// # Errors
/// It has not in time.
pub fn wait_for_proofs(agent: &Agent<'_>, ways: usize) -> Result<()> {
    let are_proved = |answer: &Answer| {
        let peers: Vec<Value> = serde_json::from_str(&answer.body).unwrap_or_default();
        peers.len() >= ways && peers.iter().all(|peer| peer["state"] == "proved")
    };
    let answer = agent.wait_for_answer("/peers", PROVED, are_proved);
    answer.map(drop).with_context(|| format!("{}; the log:\n{}", agent.node(), agent.log()))
}

/// Packets of clients outside that an agent's node has sent on, and connections that it has translated.
///
/// # Errors
/// The agent does not list them.
pub fn counted(agent: &Agent<'_>) -> Result<(u64, u64)> {
    let listed = agent.list("hooks")?;
    let hooks = listed["hooks"]["each"].as_array().context("hooks")?;
    let sum = |outcome| hooks.iter().filter_map(|it| it["packets"][outcome].as_u64()).sum();
    Ok((sum("sent_on"), sum("opened")))
}

/// Adds a Service at port 81 of the load balancer IPs, with this port of these pods as its endpoints.
///
/// # Errors
/// There is no such pod, or the manifests cannot be written.
pub fn put(scene: &mut Scene<'_>, port: u16, pods: &[&str]) -> Result<()> {
    let mut other = service("other", &["10.96.1.50", "fd00:96::150"], &[("http", 81, "TCP")], &[]);
    other["spec"]["type"] = "LoadBalancer".into();
    other["status"] = json!({"loadBalancer": {"ingress": BALANCER.map(|ip| json!({"ip": ip}))}});
    scene.manifests.put(other);
    for family in Family::BOTH {
        let mut endpoints = Vec::new();
        for pod in pods {
            let pod = scene.cluster.pod(pod)?;
            let address: IpAddr = match family {
                Family::V4 => pod.ipv4.into(),
                Family::V6 => pod.ipv6.into(),
            };
            endpoints.push(endpoint(&address.to_string(), &pod.node, &pod.name));
        }
        let family: &str = family.into();
        scene.manifests.put(slice("other", family, &[("http", port, "TCP")], &endpoints));
    }
    scene.manifests.write()
}

//! Clients outside of the nodes: a scene with all kinds of frontends, and who carries its packets, tc or XDP.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use crate::binary::row;
use crate::client::Client;
use crate::process::printed;
use crate::scene::{FOLLOWS, HERE, Scene, prepared};
use crate::traffic::{Socket, Via};

/// The node ports of `web`, at the agent's node.
pub const WEB: [(Via, &str); 5] = [
    (Via::Http, "172.30.0.2:30080"),
    (Via::UdpConnected, "172.30.0.2:30053"),
    (Via::Udp, "172.30.0.2:30053"),
    (Via::Http, "[fd00:172::2]:30080"),
    (Via::UdpConnected, "[fd00:172::2]:30053"),
];
/// The load balancer IPs of `web`.
pub const BALANCER: [&str; 2] = ["203.0.113.10", "2001:db8:113::10"];
/// The agent's node.
pub const NODE: [&str; 2] = ["172.30.0.2", "fd00:172::2"];

/// The scene with all kinds of frontends of `web`, and an agent that serves clients outside and does not run yet.
///
/// # Errors
/// The scene cannot be made, or `body` fails.
pub fn idle(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    prepared(
        |manifests| {
            let Ok(web) = manifests.get("Service", "web") else { return };
            web["spec"]["type"] = "LoadBalancer".into();
            web["spec"]["ports"][0]["nodePort"] = 30_080.into();
            web["spec"]["ports"][1]["nodePort"] = 30_053.into();
            let ingress = BALANCER.map(|ip| json!({"ip": ip}));
            web["status"] = json!({"loadBalancer": {"ingress": ingress}});
        },
        |scene| {
            scene.agent.set("--kube-proxy-replacement", "");
            // One client's share is a quarter, and its datagrams count for two minutes.
            scene.agent.set("--max-connections", "16384");
            let [four, six] = BALANCER;
            scene.cluster.fabric().ip(&[
                format!("route add {four} via {}", NODE[0]),
                format!("route add {six} via {}", NODE[1]),
            ])?;
            body(scene)
        },
    )
}

/// Starts the agent with this value of `--xdp` and an endpoint on another node alone. Returns a client outside.
///
/// # Errors
/// The agent does not start, or the endpoint does not answer.
pub fn begin(scene: &mut Scene<'_>, xdp: &str) -> Result<Client> {
    scene.agent.set("--xdp", xdp);
    scene.set_endpoints("web", &["b"])?;
    scene.agent.resume()?;
    let mut client = scene.cluster.guest("outside", scene.cluster.fabric())?;
    wait_at_each(&mut client, &["b"])?;
    Ok(client)
}

/// Waits until exactly these pods answer the client at each node port.
///
/// # Errors
/// They do not within [`FOLLOWS`].
pub fn wait_at_each(client: &mut Client, pods: &[&str]) -> Result<()> {
    for (via, address) in WEB {
        client.wait_for(via, address.parse()?, pods, FOLLOWS)?;
    }
    Ok(())
}

/// The number of packets at this hook with this outcome.
///
/// # Errors
/// The agent does not list it.
pub fn packets_at(scene: &Scene<'_>, hook: &str, outcome: &str) -> Result<u64> {
    let listed = scene.agent.list("hooks")?;
    let hook = row(&listed["hooks"]["each"], "hook", hook)?;
    hook["packets"][outcome].as_u64().with_context(|| format!("no {outcome} in {hook}"))
}

/// How often each connection asks, and most packets that tc may see of one besides: those that open it and, once in
/// some seconds, one more each way.
pub const ASKS: u64 = 30;
const OF_TC: u64 = 12;

/// Open connections, one of each kind of [`WEB`], to the endpoint "b".
///
/// # Errors
/// One cannot be opened, or gets no answer of "b".
pub fn open(client: &mut Client) -> Result<Vec<(Socket, SocketAddr)>> {
    let mut all = Vec::new();
    for (via, address) in WEB {
        let to = address.parse()?;
        all.push((client.open(via, to)??, to));
    }
    ask(client, &all, 2)?;
    Ok(all)
}

fn ask(client: &mut Client, all: &[(Socket, SocketAddr)], times: u64) -> Result<()> {
    for &(socket, to) in all {
        for _ in 0..times {
            let reply = client.ask(socket, Some(to))?.with_context(|| format!("from {to}"))?;
            ensure!(reply.pod == "b", "{reply:?}");
        }
    }
    Ok(())
}

/// What XDP has carried, and what tc has translated.
///
/// # Errors
/// The agent does not list it.
pub fn carried(scene: &Scene<'_>) -> Result<(u64, u64)> {
    let at = |hook| packets_at(scene, hook, "translated");
    Ok((at("xdp")?, at("tc ingress")?))
}

/// Asks by all connections, and returns what XDP carried of that and what tc translated.
///
/// # Errors
/// One gets no answer of "b".
pub fn carried_of(
    scene: &Scene<'_>,
    client: &mut Client,
    all: &[(Socket, SocketAddr)],
) -> Result<(u64, u64)> {
    let before = carried(scene)?;
    ask(client, all, ASKS)?;
    let after = carried(scene)?;
    Ok((after.0 - before.0, after.1 - before.1))
}

/// Checks that XDP carries what these connections ask and get.
///
/// # Errors
/// It does not, or one gets no answer of "b".
pub fn expect_by_xdp(
    scene: &Scene<'_>,
    client: &mut Client,
    all: &[(Socket, SocketAddr)],
) -> Result<()> {
    let connections = all.len() as u64;
    let (by_xdp, by_tc) = carried_of(scene, client, all)?;
    // A question and its answer at least.
    let least = connections * (2 * ASKS - OF_TC);
    ensure!(by_xdp >= least, "XDP carried {by_xdp} packets, and tc {by_tc}");
    ensure!(by_tc <= connections * OF_TC, "tc translated {by_tc} packets, and XDP {by_xdp}");
    Ok(())
}

/// Checks that tc translates all that these connections ask and get.
///
/// # Errors
/// It does not, or one gets no answer of "b".
pub fn expect_by_tc(
    scene: &Scene<'_>,
    client: &mut Client,
    all: &[(Socket, SocketAddr)],
) -> Result<()> {
    let (by_xdp, by_tc) = carried_of(scene, client, all)?;
    let least = all.len() as u64 * 2 * ASKS;
    ensure!(by_xdp == 0 && by_tc >= least, "XDP carried {by_xdp} packets, and tc {by_tc}");
    Ok(())
}

/// The pin of the link of XDP, if there is one.
///
/// # Errors
/// The agent has no folder of links.
pub fn pin(scene: &Scene<'_>) -> Result<Option<PathBuf>> {
    let entries = fs::read_dir(scene.agent.pins().join("links"))?;
    let mut paths = entries.map_while(Result::ok).map(|entry| entry.path());
    Ok(paths.find(|path| path.to_string_lossy().contains("topo_lb_xdp_")))
}

/// What `ip` says of the uplink.
///
/// # Errors
/// There is none.
pub fn uplink(scene: &Scene<'_>) -> Result<String> {
    let mut ip = Command::new("ip");
    ip.args(["link", "show", "dev", "eth0"]);
    scene.cluster.node_netns(HERE)?.run(|| printed(&mut ip))
}

/// Checks that the link outlives the agent, that the next one replaces the program in it, and that no answer is missing
/// meanwhile.
///
/// # Errors
/// One of that is not so.
pub fn outlive(
    scene: &mut Scene<'_>,
    client: &mut Client,
    all: &[(Socket, SocketAddr)],
) -> Result<()> {
    let path = pin(scene)?.context("a pin")?;
    let link = fs::metadata(&path)?.ino();
    let program = uplink(scene)?;
    scene.agent.kill();
    expect_by_xdp(scene, client, all).context("while no agent runs")?;
    resume(scene, client)?;
    expect_by_xdp(scene, client, all).context("with the next agent")?;
    ensure!(fs::metadata(&path)?.ino() == link, "the link is another one");
    ensure!(uplink(scene)? != program, "the program is the same: {program}");
    Ok(())
}

/// Starts the agent again, and checks that no answer is missing meanwhile.
///
/// # Errors
/// One is, or the agent does not start.
pub fn resume(scene: &mut Scene<'_>, client: &mut Client) -> Result<()> {
    let to = WEB[0].1.parse()?;
    let (tally, ()) = client.call_during(Via::Http, to, || scene.agent.resume())?;
    ensure!(tally.answered() == tally.requests, "while the next agent starts: {tally}");
    Ok(())
}

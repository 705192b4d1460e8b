//! The scene of these tests: `web` with all kinds of frontends, and a client outside.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use topo_lb_tests::card::{self, far_end};
use topo_lb_tests::client::Client;
use topo_lb_tests::manifest::Manifests;
use topo_lb_tests::outside;
pub(crate) use topo_lb_tests::outside::{BALANCER, NODE, WEB, packets_at, wait_at_each};
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene};
use topo_lb_tests::wait::{patient, until};

/// The client outside.
pub(crate) const OUTSIDE: [&str; 2] = ["172.30.0.254", "fd00:172::ff"];

/// The scene with all kinds of frontends of `web`, and an agent that serves clients outside and does
/// not run yet.
pub(crate) fn idle(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    at_cable(false, body)
}

/// The fabric's end of the agent's uplink.
pub(crate) const FAR_END: &str = "node1";

/// Like [`idle`], with an uplink that is like a card's, or not.
pub(crate) fn at_cable(
    is_card: bool,
    body: impl FnOnce(&mut Scene<'_>) -> Result<()>,
) -> Result<()> {
    requirements::command("nft", "nftables")?;
    outside::idle(|scene| {
        let fabric = scene.cluster.fabric();
        let is_card = is_card && !card::is_asked();
        let _cable = is_card.then(|| far_end(fabric, FAR_END)).transpose()?;
        let _pods = is_card.then(|| scene.cluster.pods_at_one_queue()).transpose()?;
        body(scene)
    })
}

/// Like [`idle`], with an agent that is ready, and a client outside.
pub(crate) fn play(body: impl FnOnce(&mut Scene<'_>, &mut Client) -> Result<()>) -> Result<()> {
    play_with("auto", body)
}

/// Like [`play`], with this value of `--masquerade`.
pub(crate) fn play_with(
    masquerade: &str,
    body: impl FnOnce(&mut Scene<'_>, &mut Client) -> Result<()>,
) -> Result<()> {
    idle(|scene| {
        scene.agent.set("--masquerade", masquerade);
        scene.agent.resume()?;
        let mut client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        body(scene, &mut client)
    })
}

pub(crate) fn set(manifests: &mut Manifests, field: &str, value: Value) -> Result<()> {
    manifests.get("Service", "web")?["spec"][field] = value;
    Ok(())
}

/// What becomes of a connection of the fabric: the error of an attempt that takes half a second.
pub(crate) fn connect(scene: &Scene<'_>, to: SocketAddr) -> Result<io::Result<()>> {
    let limit = patient(Duration::from_millis(500));
    scene.cluster.fabric().run(|| Ok(TcpStream::connect_timeout(&to, limit).map(drop)))
}

/// Checks that a connection gets no answer at all, and that the programs have dropped its packets.
pub(crate) fn expect_dropped(scene: &Scene<'_>, to: SocketAddr) -> Result<()> {
    let before = packets(scene, "denied")?;
    let outcome = connect(scene, to)?;
    let is_late = outcome.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut);
    ensure!(is_late, "{to}: {outcome:?}");
    ensure!(packets(scene, "denied")? > before, "the programs dropped nothing to {to}");
    Ok(())
}

/// The number of incoming packets with this outcome, at tc and at XDP.
pub(crate) fn packets(scene: &Scene<'_>, outcome: &str) -> Result<u64> {
    Ok(packets_at(scene, "tc ingress", outcome)? + packets_at(scene, "xdp", outcome)?)
}

/// The rules of the node, as `nft` lists them.
pub(crate) fn tables(scene: &Scene<'_>) -> Result<String> {
    nft(scene, "list ruleset")
}

pub(crate) fn nft(scene: &Scene<'_>, command: &str) -> Result<String> {
    let mut nft = Command::new("nft");
    nft.args(command.split(' '));
    scene.cluster.node_netns(HERE)?.run(|| printed(&mut nft))
}

/// Waits until the node's rules are these.
pub(crate) fn wait_for_tables(scene: &Scene<'_>, wanted: &str) -> Result<()> {
    until("the table", FOLLOWS, || {
        let now = tables(scene)?;
        Ok(if now == wanted { Ok(()) } else { Err(now) })
    })?;
    Ok(())
}

//! The fast path of XDP in the driver of a card: virtio_net, in the guests of `cargo xtask test`, which have two cards
//! that are connected. One is the uplink of the agent's node, the other its far end.
//!
//! Everything is sent by real sockets. Neither card computes checksums or joins segments: QEMU's hub offers neither. So
//! the kernel checks each checksum, and the socket that a wrong one is sent to gets nothing.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use anyhow::{Result, ensure};
use serde_json::json;
use topo_lb_tests::outside::{
    BALANCER, NODE, begin, expect_by_xdp, idle, open, outlive, packets_at, pin, uplink,
};
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::virtio::connect;
use topo_lb_tests::wait::until;

#[test]
#[ignore = "takes two cards that are connected: `cargo xtask test --only kernels` runs it in guests"]
fn virtio_net_translates_drops_outlives_the_agent_and_detaches() -> Result<()> {
    idle(|scene| {
        connect(scene)?;
        let mut client = begin(scene, "auto")?;
        // `ip` calls the kernel's own way xdpgeneric.
        let shown = uplink(scene)?;
        let is_native = shown.contains("xdp") && !shown.contains("xdpgeneric");
        ensure!(pin(scene)?.is_some() && is_native, "{shown}");
        let all = open(&mut client)?;
        expect_by_xdp(scene, &mut client, &all)?;
        // More bytes than a window, each way.
        for &(socket, _) in all.iter().filter(|(_, to)| to.port() == 30_080) {
            client.echo(socket, 1 << 18)?;
        }
        expect_denied_by_xdp(scene)?;
        outlive(scene, &mut client, &all)?;
        scene.agent.stop()?;
        let agent = &scene.agent;
        let cleanup = scene.cluster.node_netns(HERE)?.run(|| agent.cleanup())?;
        ensure!(cleanup.status.success() && !uplink(scene)?.contains("xdp"), "{cleanup:?}");
        // Nothing listens there; a refusal shows that the cards still carry packets both ways.
        for address in NODE {
            let tally = client.call(Via::Http, SocketAddr::new(address.parse()?, 1), 1)?;
            ensure!(tally.refused == 1, "{address}: {tally}");
        }
        Ok(())
    })
}

/// Checks that XDP drops and counts all that a source sends which the ranges deny.
fn expect_denied_by_xdp(scene: &mut Scene<'_>) -> Result<()> {
    const DENIED: [&str; 2] = ["192.0.2.77", "2001:db8:2::77"];
    const DATAGRAMS: u64 = 50;
    scene.change(|it| {
        let ranges = json!(["198.51.100.0/24", "2001:db8:100::/48"]);
        it.get("Service", "web")?["spec"]["loadBalancerSourceRanges"] = ranges;
        Ok(())
    })?;
    let fabric = scene.cluster.fabric();
    for ((source, balancer), node) in DENIED.into_iter().zip(BALANCER).zip(NODE) {
        fabric.ip(&[
            format!("address add {source} dev br0 nodad"),
            format!("route replace {balancer} via {node} src {source}"),
        ])?;
        let (source, to): (IpAddr, _) = (source.parse()?, at(balancer)?);
        let send = |times: u64| {
            fabric.run(|| {
                // Of a port of its own: what was open before the ranges came is tc's.
                let socket = UdpSocket::bind(SocketAddr::new(source, 0))?;
                for _ in 0..times {
                    socket.send_to(b"?", to)?;
                }
                Ok(())
            })
        };
        let denied = |hook| packets_at(scene, hook, "denied");
        let before = denied("xdp")?;
        until("a datagram that XDP drops", FOLLOWS, || {
            send(1)?;
            let now = denied("xdp")?;
            Ok(if now > before { Ok(()) } else { Err(now) })
        })?;
        let (by_xdp, by_tc) = (denied("xdp")?, denied("tc ingress")?);
        send(DATAGRAMS)?;
        until("all to be dropped by XDP", FOLLOWS, || {
            let now = denied("xdp")?;
            Ok(if now == by_xdp + DATAGRAMS { Ok(()) } else { Err(now) })
        })?;
        ensure!(denied("tc ingress")? == by_tc, "tc dropped some to {balancer}");
    }
    Ok(())
}

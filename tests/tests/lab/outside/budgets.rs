//! What clients outside do to the table of connections that they share with others.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topo_lb_tests::flood::{flood, send_each};
use topo_lb_tests::frame::{Tcp, tcp, udp};
use topo_lb_tests::http;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene};
use topo_lb_tests::traffic::{Tally, Via};
use topo_lb_tests::wait::{patient, until};

use super::dialling::{expect_no_more_than_dropped, lost};
use super::scene::{BALANCER, OUTSIDE, WEB, idle, packets, play, set};

/// Ethernet addresses of the node's uplink, and of the fabric.
const NODE: [u8; 6] = [2, 0x54, 0x4c, 1, 1, 0];
const FABRIC: [u8; 6] = [2, 0x54, 0x4c, 1, 254, 0];
/// A Service with an endpoint that answers nothing, by TCP and UDP: its node port at the agent's node.
const SILENT: &str = "172.30.0.2:30090";
/// The address of that endpoint, to which its node has no way.
pub(super) const NOWHERE: &str = "10.244.1.250";
/// The device that leads to the agent's node.
pub(super) const DEVICE: &str = "node1";

/// A frame to the agent's node.
pub(super) fn to_node(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&NODE);
    frame[6..12].copy_from_slice(&FABRIC);
    frame
}

/// Adds the Service that answers nothing.
fn add_silent(scene: &mut Scene<'_>) -> Result<()> {
    let ports = [("http", 9376, "TCP"), ("udp", 9376, "UDP")];
    let mut silent = service("silent", &["10.96.1.9"], &ports, &[]);
    silent["spec"]["type"] = "NodePort".into();
    for port in silent["spec"]["ports"].as_array_mut().context("ports")? {
        port["nodePort"] = 30_090.into();
    }
    scene.manifests.put(silent);
    let nobody = [endpoint(NOWHERE, HERE, "nobody")];
    scene.manifests.put(slice("silent", "IPv4", &ports, &nobody));
    let node = scene.cluster.node_netns(HERE)?;
    node.ip(&[format!("route add blackhole {NOWHERE}/32")])
}

/// Waits until the programs serve the Service that answers nothing.
fn wait_for_silent(scene: &Scene<'_>) -> Result<()> {
    let frame = to_node(udp((client4(), 999).into(), SILENT.parse()?, b"are you there?"));
    until("a silent Service", FOLLOWS, || {
        let before = packets(scene, "opened")?;
        send_each(scene.cluster.fabric(), DEVICE, std::slice::from_ref(&frame))?;
        Ok(if packets(scene, "opened")? > before { Ok(()) } else { Err("nothing is opened") })
    })?;
    Ok(())
}

fn client4() -> Ipv4Addr {
    OUTSIDE[0].parse().expect("an address in a test")
}

#[test]
fn a_silent_service_does_not_stop_its_client_at_another_one() -> Result<()> {
    const SYNS: u64 = 20_000;
    idle(|scene| {
        add_silent(scene)?;
        scene.manifests.write()?;
        scene.agent.resume()?;
        wait_for_silent(scene)?;
        let fabric = scene.cluster.fabric();
        let mut client = scene.cluster.guest("outside", fabric)?;
        client.wait_for(WEB[0].0, WEB[0].1.parse()?, &ALL, FOLLOWS)?;
        let silent: SocketAddr = SILENT.parse()?;
        let syns: Vec<_> = (1_024..30_000)
            .map(|port| to_node(tcp((client4(), port).into(), silent, Tcp::Syn(port.into()))))
            .collect();
        let refused = || {
            let each = ["limited", "no_port", "table_full"].map(|outcome| packets(scene, outcome));
            each.into_iter().sum::<Result<u64>>()
        };
        let (before, dropped) = (refused()?, scene.cluster.dropped_in_queues()?);
        let mut tally = Tally::default();
        let sent = thread::scope(|scope| {
            let flood = scope.spawn(|| -> Result<u64> {
                let (end, mut sent) = (Instant::now() + patient(Duration::from_secs(30)), 0);
                while sent < SYNS && Instant::now() < end {
                    // The next ones: there are more of them.
                    let rest = &syns[usize::try_from(sent)?..];
                    sent += flood(fabric, DEVICE, rest, Duration::from_secs(2))?;
                }
                Ok(sent)
            });
            while !flood.is_finished() {
                tally.add(&client.call(Via::Http, WEB[0].1.parse()?, 5)?);
            }
            flood.join().expect("a flood does not panic")
        })?;
        println!("{sent} SYNs without an answer; beside them {tally}");
        ensure!(sent >= SYNS, "only {sent} SYNs");
        let lost = u64::from(tally.requests - tally.answered());
        // The kernel's queue is everybody's: what it drops, no program has seen.
        ensure!(lost <= scene.cluster.dropped_in_queues()? - dropped, "{tally}");
        ensure!(refused()? == before, "{} packets were refused", refused()? - before);
        Ok(())
    })
}

#[test]
fn datagrams_that_nobody_answers_all_reach_their_endpoint() -> Result<()> {
    const FLOWS: u16 = 5_000;
    idle(|scene| {
        add_silent(scene)?;
        scene.manifests.write()?;
        scene.agent.resume()?;
        wait_for_silent(scene)?;
        let to: SocketAddr = SILENT.parse()?;
        let lines: Vec<_> = (0..FLOWS)
            .map(|number| to_node(udp((client4(), 2_000 + number).into(), to, b"a line of a log")))
            .collect();
        let (before, dropped) = (packets(scene, "translated")?, scene.cluster.dropped_in_queues()?);
        send_each(scene.cluster.fabric(), DEVICE, &lines)?;
        until("each datagram", FOLLOWS, || {
            let translated = packets(scene, "translated")? - before;
            let dropped = scene.cluster.dropped_in_queues()? - dropped;
            let is_all = translated + dropped >= u64::from(FLOWS);
            let seen =
                || format!("{translated} of {FLOWS} translated, {dropped} dropped by queues");
            Ok(if is_all { Ok(()) } else { Err(seen()) })
        })?;
        Ok(())
    })
}

#[test]
fn datagrams_that_nobody_answers_cost_a_healthy_service_none() -> Result<()> {
    /// In a second, and for so many seconds.
    const RATE: u16 = 5_000;
    const SECONDS: u16 = 2;
    idle(|scene| {
        add_silent(scene)?;
        scene.manifests.write()?;
        scene.agent.resume()?;
        wait_for_silent(scene)?;
        let fabric = scene.cluster.fabric();
        let mut client = scene.cluster.guest("outside", fabric)?;
        for (via, to) in WEB {
            client.wait_for(via, to.parse()?, &ALL, FOLLOWS)?;
        }
        let to: SocketAddr = SILENT.parse()?;
        for addresses in [1, RATE] {
            let frames: Vec<_> = (0..RATE * SECONDS)
                .map(|number| {
                    let [high, low] = (number % addresses).to_be_bytes();
                    // The one is that of the healthy Service's client: a proxy that hides others.
                    let many = Ipv4Addr::new(198, 19, high, low);
                    let from = if addresses == 1 { client4() } else { many };
                    to_node(udp((from, 2_000 + number).into(), to, b"a line of a log"))
                })
                .collect();
            let dropped = scene.cluster.dropped_in_queues()?;
            let mut tally = Tally::default();
            thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    let start = Instant::now();
                    let mut parts = (1..).zip(frames.chunks(usize::from(RATE) / 100));
                    parts.try_for_each(|(number, part)| {
                        send_each(fabric, DEVICE, part)?;
                        let due = start + number * Duration::from_millis(10);
                        thread::sleep(due.saturating_duration_since(Instant::now()));
                        anyhow::Ok(())
                    })
                });
                while !sender.is_finished() {
                    for (via, to) in WEB {
                        tally.add(&client.call(via, to.parse()?, 10)?);
                    }
                }
                sender.join().expect("a flood does not panic")
            })?;
            println!("{addresses} addresses; beside them {tally}");
            expect_no_more_than_dropped(scene.cluster, lost(&tally), dropped)
                .with_context(|| tally.to_string())?;
        }
        for outcome in ["limited", "no_port", "table_full"] {
            let refused = packets(scene, outcome)?;
            ensure!(refused == 0, "{outcome}: {refused}");
        }
        Ok(())
    })
}

#[test]
fn a_client_that_dials_in_series_is_never_refused() -> Result<()> {
    const ROOM: u32 = 512;
    idle(|scene| {
        scene.agent.set("--max-connections", ROOM.to_string());
        scene.agent.resume()?;
        let mut client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        client.wait_for(WEB[0].0, WEB[0].1.parse()?, &ALL, FOLLOWS)?;
        let (before, dropped) = (packets(scene, "limited")?, scene.cluster.dropped_in_queues()?);
        let tally = client.call(Via::Http, WEB[0].1.parse()?, 4 * ROOM)?;
        let limited = packets(scene, "limited")? - before;
        ensure!(limited == 0, "{limited} packets were refused: {tally}");
        let lost = u64::from(tally.requests - tally.answered());
        ensure!(lost <= scene.cluster.dropped_in_queues()? - dropped, "{tally}");
        Ok(())
    })
}

#[test]
fn forged_packets_move_no_client_to_another_endpoint() -> Result<()> {
    const CLIENTS: u8 = 8;
    idle(|scene| {
        set(&mut scene.manifests, "sessionAffinity", "ClientIP".into())?;
        let config = json!({"clientIP": {"timeoutSeconds": 10_800}});
        set(&mut scene.manifests, "sessionAffinityConfig", config)?;
        scene.manifests.write()?;
        // Room for so few clients that the forged ones would take it.
        scene.agent.set("--max-flows", "256");
        scene.agent.resume()?;
        let fabric = scene.cluster.fabric();
        let to: SocketAddr = WEB[0].1.parse()?;
        let addresses = scene.cluster.add_clients(CLIENTS)?;
        let ask = |from: &Ipv4Addr| {
            http::get_from(fabric, Some((*from).into()), to, "/").map(|answer| answer.body)
        };
        let kept: Vec<String> = addresses.iter().map(&ask).collect::<Result<_>>()?;
        let forged: Vec<_> = (0..4_096_u16)
            .map(|number| {
                let [high, low] = number.to_be_bytes();
                to_node(tcp(([198, 18, high, low], 40_000).into(), to, Tcp::Syn(7)))
            })
            .collect();
        let before = packets(scene, "opened")?;
        send_each(fabric, DEVICE, &forged)?;
        until("connections of the forged packets", FOLLOWS, || {
            let opened = packets(scene, "opened")? - before;
            Ok(if opened > 1_000 { Ok(()) } else { Err(format!("{opened} were opened")) })
        })?;
        let again: Vec<String> = addresses.iter().map(&ask).collect::<Result<_>>()?;
        ensure!(again == kept, "{kept:?} answered before, and {again:?} after");
        Ok(())
    })
}

/// Any host can have the node forward a packet that looks like one of a Service to its client.
#[test]
fn a_false_source_that_is_a_frontend_takes_no_client_away_from_it() -> Result<()> {
    play(|scene, client| {
        for (via, web) in [WEB[1], WEB[4]] {
            client.wait_for(via, web.parse()?, &ALL, FOLLOWS)?;
        }
        let fabric = scene.cluster.fabric();
        // No packet from outside has the node's IPv4 address as its source.
        for (own, frontend) in [
            (OUTSIDE[0], SocketAddr::new(BALANCER[0].parse()?, 80)),
            (OUTSIDE[1], SocketAddr::new(BALANCER[1].parse()?, 80)),
            (OUTSIDE[1], WEB[4].1.parse()?),
        ] {
            let socket = fabric.run(|| Ok(UdpSocket::bind((own, 0))?))?;
            socket.set_read_timeout(Some(patient(Duration::from_secs(4))))?;
            let forged = to_node(udp(frontend, socket.local_addr()?, b"false"));
            send_each(fabric, DEVICE, &[forged])?;
            let mut said = [0; 512];
            let (length, from) = socket.recv_from(&mut said).context("it is not forwarded")?;
            ensure!((&said[..length], from) == (&b"false"[..], frontend), "{from}");
            socket.send_to(b"who?", frontend)?;
            let answer = socket.recv_from(&mut said);
            let (_, from) = answer.with_context(|| format!("{frontend} does not answer"))?;
            ensure!(from == frontend, "{from}");
        }
        Ok(())
    })
}

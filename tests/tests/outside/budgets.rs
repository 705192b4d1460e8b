//! What clients outside do to the table of connections that they share with others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use socket2::{Domain, Socket, Type};
use topo_lb_tests::flood::{dropped_in_queues, flood, send_each};
use topo_lb_tests::frame::{Tcp, tcp, udp};
use topo_lb_tests::http;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene};
use topo_lb_tests::traffic::{Tally, Via};
use topo_lb_tests::wait::{patient, until};

use super::scene::{OUTSIDE, WEB, idle, packets, set};

/// Ethernet addresses of the node's uplink, and of the fabric.
const NODE: [u8; 6] = [2, 0x54, 0x4c, 1, 1, 0];
const FABRIC: [u8; 6] = [2, 0x54, 0x4c, 1, 254, 0];
/// A Service with an endpoint that answers nothing, by TCP and UDP: its node port at the agent's node.
const SILENT: &str = "172.30.0.2:30090";
/// The address of that endpoint, to which its node has no way.
const NOWHERE: &str = "10.244.1.250";
/// The device that leads to the agent's node.
const DEVICE: &str = "node1";

/// A frame to the agent's node.
fn to_node(mut frame: Vec<u8>) -> Vec<u8> {
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
        let (before, dropped) = (refused()?, dropped_in_queues()?);
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
        ensure!(lost <= dropped_in_queues()? - dropped, "{tally}");
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
        let (before, dropped) = (packets(scene, "translated")?, dropped_in_queues()?);
        send_each(scene.cluster.fabric(), DEVICE, &lines)?;
        until("each datagram", FOLLOWS, || {
            let translated = packets(scene, "translated")? - before;
            let dropped = dropped_in_queues()? - dropped;
            let is_all = translated + dropped >= u64::from(FLOWS);
            let seen =
                || format!("{translated} of {FLOWS} translated, {dropped} dropped by queues");
            Ok(if is_all { Ok(()) } else { Err(seen()) })
        })?;
        Ok(())
    })
}

/// Opens a connection from an address of this network namespace, closes it, and waits for the end.
fn come_and_go(from: IpAddr, to: SocketAddr) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    let limit = patient(Duration::from_secs(10));
    socket.connect_timeout(&to.into(), limit)?;
    let stream: TcpStream = socket.into();
    stream.set_read_timeout(Some(limit))?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let end = std::io::copy(&mut &stream, &mut std::io::sink());
    end.context("an end that is no FIN")?;
    Ok(())
}

#[test]
fn short_connections_of_many_clients_leave_open_ones_alone() -> Result<()> {
    const ROOM: u32 = 512;
    idle(|scene| {
        scene.agent.set("--max-connections", ROOM.to_string());
        scene.agent.resume()?;
        let fabric = scene.cluster.fabric();
        let addresses = scene.cluster.add_clients(64)?;
        let mut client = scene.cluster.guest("outside", fabric)?;
        client.wait_for(WEB[0].0, WEB[0].1.parse()?, &ALL, FOLLOWS)?;
        let mut held = Vec::new();
        for (via, to) in [WEB[0], WEB[3]].into_iter().cycle().take(8) {
            let socket = client.open(via, to.parse()?)??;
            held.push((socket, client.ask(socket, None)??.pod));
        }
        let to: SocketAddr = WEB[0].1.parse()?;
        fabric.run(|| {
            (0..10 * ROOM as usize)
                .try_for_each(|number| come_and_go(addresses[number % addresses.len()].into(), to))
        })?;
        for (socket, pod) in held {
            let reply = client.ask(socket, None)?.context("an open connection has no answer")?;
            ensure!(reply.pod == pod, "{pod} answered, and then {}", reply.pod);
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
        let (before, dropped) = (packets(scene, "limited")?, dropped_in_queues()?);
        let tally = client.call(Via::Http, WEB[0].1.parse()?, 4 * ROOM)?;
        let limited = packets(scene, "limited")? - before;
        ensure!(limited == 0, "{limited} packets were refused: {tally}");
        let lost = u64::from(tally.requests - tally.answered());
        ensure!(lost <= dropped_in_queues()? - dropped, "{tally}");
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

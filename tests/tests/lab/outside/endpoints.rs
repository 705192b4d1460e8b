//! Endpoints that answer nothing, or by a RST, or late, beside healthy ones.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::pod::PORT;
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene};
use topo_lb_tests::traffic::Tally;

use super::budgets::NOWHERE;
use super::dialling::{ask, dial_within, expect_no_more_than_dropped, limit, lost, sent_again};
use super::scene::{OUTSIDE, WEB, idle};
use super::sources::{SEEN_PORT, bound};

/// The node port of a Service whose endpoints do not all answer.
const MIXED: &str = "172.30.0.2:30091";
/// A port at which nothing listens.
const CLOSED: u16 = 7;
/// How late the late endpoint is.
const LATE: Duration = Duration::from_secs(5);
/// Connections by TCP and by UDP: that one of four endpoints has none of them happens once in 10^7.
const EACH: usize = 64;

/// Adds the Service: pod a is closed, b healthy, c late, and one more endpoint is silent.
fn add_mixed(scene: &mut Scene<'_>) -> Result<()> {
    let ports = [("http", 9_376, "TCP"), ("udp", 9_376, "UDP")];
    let mut mixed = service("mixed", &["10.96.1.70"], &ports, &[]);
    mixed["spec"]["type"] = "NodePort".into();
    for port in mixed["spec"]["ports"].as_array_mut().context("ports")? {
        port["nodePort"] = 30_091.into();
    }
    scene.manifests.put(mixed);
    for (name, port) in [("a", CLOSED), ("b", PORT), ("c", SEEN_PORT), ("nobody", PORT)] {
        let endpoint = match name {
            "nobody" => endpoint(NOWHERE, HERE, name),
            _ => {
                let pod = scene.cluster.pod(name)?;
                endpoint(&pod.ipv4.to_string(), &pod.node, name)
            }
        };
        let ports = [("http", port, "TCP"), ("udp", port, "UDP")];
        let mut slice: Value = slice("mixed", "IPv4", &ports, &[endpoint]);
        slice["metadata"]["name"] = format!("mixed-{name}").into();
        scene.manifests.put(slice);
    }
    scene.cluster.node_netns(HERE)?.ip(&[format!("route add blackhole {NOWHERE}/32")])
}

/// Serves late in pod c, by TCP and UDP, until there is nothing more to do.
fn serve_late(tcp: &TcpListener, udp: &UdpSocket, done: &AtomicBool) -> Result<()> {
    tcp.set_nonblocking(true)?;
    udp.set_nonblocking(true)?;
    thread::scope(|scope| {
        while !done.load(Ordering::Relaxed) {
            if let Ok((mut stream, _)) = tcp.accept() {
                scope.spawn(move || -> io::Result<()> {
                    stream.set_nonblocking(false)?;
                    let _ = stream.read(&mut [0; 512])?;
                    thread::sleep(LATE);
                    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nlate")
                });
            }
            if let Ok((_, from)) = udp.recv_from(&mut [0; 512]) {
                scope.spawn(move || {
                    thread::sleep(LATE);
                    udp.send_to(b"late", from)
                });
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
    Ok(())
}

/// What becomes of one connection, from the address that also dials the healthy Service: the name of who answers, "refused" or "silent".
fn outcome(cluster: &Cluster, is_tcp: bool, dropped: u64) -> Result<String> {
    let from: IpAddr = OUTSIDE[0].parse()?;
    let to: SocketAddr = MIXED.parse()?;
    let answer = if is_tcp {
        dial_within(from, to, limit())?.map(|stream| {
            expect_no_more_than_dropped(cluster, sent_again(&stream)?.into(), dropped)?;
            ask(&stream)
        })
    } else {
        let socket = UdpSocket::bind((from, 0))?;
        socket.set_read_timeout(Some(limit()))?;
        socket.connect(to)?;
        socket.send(b"?")?;
        let mut name = [0; 64];
        socket.recv(&mut name).map(|length| Ok(String::from_utf8_lossy(&name[..length]).into()))
    };
    match answer {
        Ok(name) => name,
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok("refused".into()),
        Err(error) if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
            Ok("silent".into())
        }
        Err(error) => Err(error.into()),
    }
}

/// Dials all at once, and counts what becomes of them.
fn all_dial(cluster: &Cluster, dropped: u64) -> Result<BTreeMap<(bool, String), u32>> {
    thread::scope(|scope| {
        let all: Vec<_> = [true, false]
            .repeat(EACH)
            .into_iter()
            .map(|is_tcp| scope.spawn(move || Ok((is_tcp, outcome(cluster, is_tcp, dropped)?))))
            .collect();
        let mut counts = BTreeMap::new();
        for one in all {
            let what: Result<_> = one.join().expect("no panic");
            *counts.entry(what?).or_default() += 1;
        }
        Ok(counts)
    })
}

#[test]
fn endpoints_that_refuse_or_are_late_or_silent_cost_others_nothing() -> Result<()> {
    idle(|scene| {
        let (tcp, udp) =
            (bound(scene, "c", TcpListener::bind)?, bound(scene, "c", UdpSocket::bind)?);
        add_mixed(scene)?;
        scene.manifests.write()?;
        scene.agent.resume()?;
        let fabric = scene.cluster.fabric();
        let mut guest = scene.cluster.guest("outside", fabric)?;
        for (via, to) in WEB {
            guest.wait_for(via, to.parse()?, &ALL, FOLLOWS)?;
        }
        let done = AtomicBool::new(false);
        let (mut tally, dropped) = (Tally::default(), scene.cluster.dropped_in_queues()?);
        let counts = thread::scope(|scope| {
            scope.spawn(|| serve_late(&tcp, &udp, &done));
            let dialling = scope.spawn(|| fabric.run(|| all_dial(scene.cluster, dropped)));
            let called = (|| {
                while !dialling.is_finished() {
                    for (via, to) in WEB {
                        tally.add(&guest.call(via, to.parse()?, 10)?);
                    }
                    thread::sleep(Duration::from_millis(20));
                }
                Ok(())
            })();
            let counts = dialling.join().expect("no panic");
            done.store(true, Ordering::Relaxed);
            called.and(counts)
        })?;
        println!("{counts:?}; beside them {tally}");
        for is_tcp in [true, false] {
            for what in ["b", "late", "refused", "silent"] {
                let count = counts.get(&(is_tcp, what.to_owned()));
                ensure!(count.is_some(), "none is {what}: {counts:?}");
            }
        }
        ensure!(counts.len() == 8, "others answer, too: {counts:?}");
        expect_no_more_than_dropped(scene.cluster, lost(&tally), dropped)
            .with_context(|| tally.to_string())
    })
}

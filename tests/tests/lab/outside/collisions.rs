//! Real clients with few ports: one port, a node port, and its endpoint directly.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::ops::RangeInclusive;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use socket2::{Domain, Socket, Type};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::process::printed;
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene};
use topo_lb_tests::wait::{patient, until};

use super::dialling::sent_again;
use super::scene::{OUTSIDE, play};
use super::sources::{SEEN, SEEN_PORT, bound, put_seen, wait_for_udp};

/// The client's ports: even ones dial the node port first, odd ones the endpoint.
const PORTS: RangeInclusive<u16> = 41_000..=41_023;
/// What asks the server to close its side first.
const CLOSE: u8 = b'c';

/// How long an exchange may take: TCP has sent a SYN three times by then.
fn limit() -> Duration {
    patient(Duration::from_secs(4))
}

/// The node port of `seen` and its endpoint in pod a, for each family.
fn targets(scene: &mut Scene<'_>) -> Result<[[SocketAddr; 2]; 2]> {
    put_seen(scene, "a")?;
    let pod = scene.cluster.pod("a")?;
    let endpoints = [IpAddr::V4(pod.ipv4), pod.ipv6.into()];
    let mut targets = [[SocketAddr::new(endpoints[0], SEEN_PORT); 2]; 2];
    for (place, [node_port, endpoint]) in targets.iter_mut().enumerate() {
        *node_port = SEEN[place].parse()?;
        *endpoint = SocketAddr::new(endpoints[place], SEEN_PORT);
        wait_for_udp(scene, "a", *node_port)?;
    }
    Ok(targets)
}

/// Serves in pod a while `work` runs: sends each byte back, and closes after [`CLOSE`].
fn served(server: &TcpListener, work: impl FnOnce() -> Result<()>) -> Result<()> {
    server.set_nonblocking(true)?;
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                match server.accept() {
                    Ok((stream, _)) => {
                        scope.spawn(|| echo(stream));
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn echo(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    // Its client may have gone without a word.
    stream.set_read_timeout(Some(patient(Duration::from_secs(30))))?;
    let mut byte = [0];
    while stream.read(&mut byte)? != 0 {
        stream.write_all(&byte)?;
        if byte[0] == CLOSE {
            break;
        }
    }
    Ok(())
}

/// A connection from this port of the client outside.
fn dial(fabric: &NetNs, port: u16, to: SocketAddr) -> Result<TcpStream> {
    let own = SocketAddr::new(OUTSIDE[usize::from(to.is_ipv6())].parse()?, port);
    let socket = fabric.run(|| {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&own.into())?;
        Ok(socket)
    })?;
    let connected = socket.connect_timeout(&to.into(), limit());
    connected.with_context(|| format!("{own} does not reach {to}"))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(limit()))?;
    Ok(stream)
}

/// Sends a byte, and gets it back.
fn ask(stream: &mut TcpStream, byte: u8) -> Result<()> {
    let peer = stream.peer_addr()?;
    stream.write_all(&[byte]).with_context(|| format!("{peer} does not listen"))?;
    let mut answer = [0];
    stream.read_exact(&mut answer).with_context(|| format!("{peer} does not answer"))?;
    ensure!(answer == [byte], "{peer}: {answer:?} for {byte}");
    Ok(())
}

/// Does the same from each port at once; the first error of each fails.
fn from_each_port(work: impl Fn(u16) -> Result<()> + Sync) -> Result<()> {
    let failed: Vec<String> = thread::scope(|scope| {
        let threads: Vec<_> = PORTS
            .map(|port| {
                (
                    port,
                    scope.spawn({
                        let work = &work;
                        move || work(port)
                    }),
                )
            })
            .collect();
        let outcome = |(port, thread): (u16, thread::ScopedJoinHandle<'_, Result<()>>)| {
            let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.err().map(|error| format!("{port}: {error:#}"))
        };
        threads.into_iter().filter_map(outcome).collect()
    });
    ensure!(failed.is_empty(), "{} of {}:\n{}", failed.len(), PORTS.len(), failed.join("\n"));
    Ok(())
}

/// Runs `work` with the client's namespace, the node port and its endpoint, which serves TCP.
fn in_each_family(work: impl Fn(&NetNs, [SocketAddr; 2]) -> Result<()>) -> Result<()> {
    play(|scene, _| {
        let targets = targets(scene)?;
        let fabric = scene.cluster.fabric();
        let server = bound(scene, "a", TcpListener::bind)?;
        served(&server, || targets.into_iter().try_for_each(|both| work(fabric, both)))
    })
}

#[test]
fn one_port_is_connected_to_a_node_port_and_to_its_endpoint_at_once() -> Result<()> {
    in_each_family(|fabric, [node_port, endpoint]| {
        from_each_port(|port| {
            let is_even = port.is_multiple_of(2);
            let (first, second) =
                if is_even { (node_port, endpoint) } else { (endpoint, node_port) };
            let mut one = dial(fabric, port, first)?;
            ask(&mut one, b'1')?;
            let mut two = dial(fabric, port, second)?;
            for _ in 0..3 {
                ask(&mut two, b'2')?;
                ask(&mut one, b'1')?;
            }
            drop(one);
            ask(&mut two, b'3')
        })
    })
}

#[test]
fn both_connections_of_a_port_go_on_without_an_agent_and_with_the_next_one() -> Result<()> {
    play(|scene, _| {
        let targets = targets(scene)?;
        let server = bound(scene, "a", TcpListener::bind)?;
        served(&server, || {
            let mut streams = Vec::new();
            for to in targets.as_flattened() {
                streams.push(dial(scene.cluster.fabric(), 41_000, *to)?);
            }
            let mut all_go_on = || streams.iter_mut().try_for_each(|it| ask(it, b'?'));
            all_go_on().context("before")?;
            scene.agent.kill();
            all_go_on().context("without an agent")?;
            scene.agent.resume()?;
            all_go_on().context("with the next one")?;
            // Its programs look up all packets until the endpoints have their marks.
            until("the marks of endpoints", FOLLOWS, || {
                let is_done = scene.agent.log().contains("tc knows which endpoints may answer");
                Ok(if is_done { Ok(()) } else { Err("not yet") })
            })?;
            all_go_on().context("with marks")
        })
    })
}

#[test]
fn a_direct_connection_begins_at_once_after_one_that_its_endpoint_has_closed() -> Result<()> {
    in_each_family(|fabric, [node_port, endpoint]| {
        let begins_at_once = |port: u16| -> Result<bool> {
            // The endpoint closes first, and is in TIME-WAIT.
            let mut through = dial(fabric, port, node_port)?;
            ask(&mut through, CLOSE)?;
            ensure!(through.read(&mut [0])? == 0, "it goes on");
            drop(through);
            let mut direct = dial(fabric, port, endpoint)?;
            ask(&mut direct, b'd')?;
            Ok(sent_again(&direct)? == 0)
        };
        let late = std::sync::Mutex::new(Vec::new());
        from_each_port(|port| {
            if !begins_at_once(port)? {
                late.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(port);
            }
            Ok(())
        })?;
        // A busy machine may be late: once more, alone, and from a port that is not in TIME-WAIT at the client.
        for port in late.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
            let other = port + 1_000;
            let is_at_once = begins_at_once(other)?;
            ensure!(
                is_at_once,
                "{endpoint}: SYNs were sent again from {port}, and from {other} alone"
            );
        }
        Ok(())
    })
}

#[test]
fn datagrams_of_one_port_to_a_node_port_and_its_endpoint_are_both_answered() -> Result<()> {
    play(|scene, _| {
        let targets = targets(scene)?;
        let server = bound(scene, "a", UdpSocket::bind)?;
        server.set_read_timeout(Some(limit()))?;
        for (place, both) in targets.into_iter().enumerate() {
            for port in PORTS {
                let own = (OUTSIDE[place], port);
                let client = scene.cluster.fabric().run(|| Ok(UdpSocket::bind(own)?))?;
                client.set_read_timeout(Some(limit()))?;
                let [first, second] =
                    if port.is_multiple_of(2) { both } else { [both[1], both[0]] };
                client.send_to(b"1", first)?;
                let mut sources = vec![server.recv_from(&mut [0])?.1];
                for _ in 0..2 {
                    client.send_to(b"2", second)?;
                    client.send_to(b"1", first)?;
                    sources.clear();
                    for _ in 0..2 {
                        sources.push(server.recv_from(&mut [0])?.1);
                    }
                }
                // The last question of each is answered after both were asked.
                for source in &sources {
                    server.send_to(b"!", source)?;
                }
                let mut from = Vec::new();
                for _ in 0..2 {
                    from.push(client.recv_from(&mut [0]).context("no answer")?.1);
                }
                ensure!(from == [second, first], "{first} and {second}: {from:?} answer");
            }
        }
        Ok(())
    })
}

#[test]
fn answers_to_the_node_at_a_node_port_are_not_for_the_service() -> Result<()> {
    play(|scene, _| {
        let targets = targets(scene)?;
        let node = scene.cluster.node_netns(HERE)?;
        node.set(&[("ipv4/ip_local_port_range", "30080 30081")])?;
        for (place, [node_port, _]) in targets.into_iter().enumerate() {
            let server =
                scene.cluster.fabric().run(|| Ok(UdpSocket::bind((OUTSIDE[place], 7))?))?;
            server.set_read_timeout(Some(limit()))?;
            let to = server.local_addr()?;
            for is_connected in [true, false] {
                // The kernel chooses the port; one of two is the node port.
                let client = (0..64).find_map(|_| {
                    let socket = node.run(|| {
                        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
                        if is_connected {
                            socket.connect(&to.into())?;
                        }
                        socket.send_to(b"?", &to.into())?;
                        Ok(UdpSocket::from(socket))
                    });
                    let is_it =
                        |it: &UdpSocket| it.local_addr().is_ok_and(|it| it.port() == 30_081);
                    socket.ok().filter(is_it)
                });
                let client = client.context("no socket has the node port")?;
                client.set_read_timeout(Some(limit()))?;
                let mut heard = None;
                while heard.is_none() {
                    let (_, source) = server.recv_from(&mut [0])?;
                    heard = (source.port() == 30_081).then_some(source);
                }
                let source = heard.context("a source")?;
                ensure!(source == node_port, "{source}");
                for _ in 0..3 {
                    server.send_to(b"!", source)?;
                    let (_, from) =
                        client.recv_from(&mut [0]).context("the answer is not for the node")?;
                    ensure!(from == to, "{from}");
                }
                // Everybody else is a client of the Service.
                wait_for_udp(scene, "a", node_port)?;
            }
        }
        Ok(())
    })
}

#[test]
fn answers_to_a_pod_that_the_node_masquerades_by_a_node_port_are_not_for_the_service() -> Result<()>
{
    play(|scene, _| {
        let targets = targets(scene)?;
        let rules = "add table inet plugin
            add chain inet plugin leave { type nat hook postrouting priority 50; }
            add rule inet plugin leave udp dport 7 masquerade to :30081";
        let node = scene.cluster.node_netns(HERE)?;
        node.run(|| printed(Command::new("nft").arg(rules)))?;
        for (place, [node_port, _]) in targets.into_iter().enumerate() {
            let own: SocketAddr = (OUTSIDE[place].parse::<IpAddr>()?, 7).into();
            let server = scene.cluster.fabric().run(|| Ok(UdpSocket::bind(own)?))?;
            let any = if own.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let pod = scene.cluster.pod("a")?.netns();
            let client = pod.run(|| Ok(UdpSocket::bind(any)?))?;
            for socket in [&server, &client] {
                socket.set_read_timeout(Some(limit()))?;
            }
            client.send_to(b"?", own)?;
            let (_, source) = server.recv_from(&mut [0])?;
            ensure!(source == node_port, "{source}");
            server.send_to(b"!", source)?;
            let got = client.recv_from(&mut [0]);
            let is_silent = |it: &io::Error| it.kind() == ErrorKind::WouldBlock;
            ensure!(!got.as_ref().is_err_and(is_silent), "the answer is not for the pod");
            ensure!(got?.1 == own);
        }
        Ok(())
    })
}

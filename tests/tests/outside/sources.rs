//! Which source endpoints see, and who gives it to them.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::snat::is_source_port;
use topo_lb_tests::client::Client;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{patient, until};

use super::scene::{NODE, OUTSIDE, WEB, idle, play_with, tables, wait_at_each};

/// The node port of `seen` at the agent's node; its endpoints tell which sources they see.
pub(super) const SEEN: [&str; 2] = ["172.30.0.2:30081", "[fd00:172::2]:30081"];
/// The port of its endpoints.
pub(super) const SEEN_PORT: u16 = 7_777;

/// A device by which packets may leave to other nodes.
const TUNNEL: &str = "link add tunnel type vxlan id 7 dev eth0 dstport 4789";

/// Makes one pod the only endpoint of `seen`, at [`SEEN_PORT`], behind node port 30081.
pub(super) fn put_seen(scene: &mut Scene<'_>, pod: &str) -> Result<()> {
    let (tcp, udp) = (("http", 81, "TCP"), ("udp", 81, "UDP"));
    let mut seen = service("seen", &["10.96.1.50", "fd00:96::150"], &[tcp, udp], &[]);
    seen["spec"]["type"] = "NodePort".into();
    for port in seen["spec"]["ports"].as_array_mut().into_iter().flatten() {
        port["nodePort"] = 30_081.into();
    }
    scene.manifests.put(seen);
    let ports = [("http", SEEN_PORT, "TCP"), ("udp", SEEN_PORT, "UDP")];
    let pod = scene.cluster.pod(pod)?;
    for (family, address) in [("IPv4", pod.ipv4.to_string()), ("IPv6", pod.ipv6.to_string())] {
        let endpoints = [endpoint(&address, &pod.node, &pod.name)];
        scene.manifests.put(slice("seen", family, &ports, &endpoints));
    }
    scene.manifests.write()
}

/// The source that a server in `pod` sees of a TCP connection from outside, and the client's own
/// address. A byte goes each way.
fn seen_by_tcp(scene: &Scene<'_>, pod: &str, to: SocketAddr) -> Result<(SocketAddr, SocketAddr)> {
    let any = (Ipv6Addr::UNSPECIFIED, SEEN_PORT);
    let limit = patient(Duration::from_secs(2));
    let server = scene.cluster.pod(pod)?.netns().run(|| Ok(TcpListener::bind(any)?))?;
    server.set_nonblocking(true)?;
    let mut client = None;
    until("a connection", FOLLOWS, || {
        let fabric = scene.cluster.fabric();
        Ok(match fabric.run(|| Ok(TcpStream::connect_timeout(&to, limit)))? {
            Ok(stream) => {
                client = Some(stream);
                Ok(())
            }
            Err(error) => Err(error),
        })
    })?;
    let mut client = client.context("a connection")?;
    let mut accepted = None;
    // The client is connected before its last packet arrives.
    until("the connection at the server", FOLLOWS, || match server.accept() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(Err("another endpoint took it")),
        other => {
            accepted = Some(other?);
            Ok(Ok(()))
        }
    })?;
    let (mut accepted, source) = accepted.context("a connection")?;
    accepted.set_nonblocking(false)?;
    for stream in [&client, &accepted] {
        stream.set_read_timeout(Some(limit))?;
    }
    let mut byte = [0];
    client.write_all(b"?")?;
    accepted.read_exact(&mut byte).context("the server hears nothing")?;
    accepted.write_all(b"!")?;
    client.read_exact(&mut byte).context("the client hears nothing")?;
    Ok((source, client.local_addr()?))
}

/// Waits until datagrams to `to` arrive in `pod`. A Service's ports are written one after the other:
/// that TCP arrives does not show it.
pub(super) fn wait_for_udp(scene: &Scene<'_>, pod: &str, to: SocketAddr) -> Result<()> {
    let any = (Ipv6Addr::UNSPECIFIED, SEEN_PORT);
    let server = scene.cluster.pod(pod)?.netns().run(|| Ok(UdpSocket::bind(any)?))?;
    server.set_read_timeout(Some(Duration::from_millis(50)))?;
    let own = if to.is_ipv4() { OUTSIDE[0] } else { OUTSIDE[1] };
    until("a datagram at the server", FOLLOWS, || {
        // Each from a port of its own: a connection keeps its endpoint.
        scene.cluster.fabric().run(|| Ok(UdpSocket::bind((own, 0))?.send_to(b"?", to)?))?;
        Ok(server.recv_from(&mut [0; 8]).map(drop))
    })?;
    Ok(())
}

/// The same as [`seen_by_tcp`] for a datagram and its answer.
fn seen_by_udp(scene: &Scene<'_>, pod: &str, to: SocketAddr) -> Result<(SocketAddr, SocketAddr)> {
    wait_for_udp(scene, pod, to)?;
    let any = |port| (Ipv6Addr::UNSPECIFIED, port);
    let limit = patient(Duration::from_secs(2));
    let server = scene.cluster.pod(pod)?.netns().run(|| Ok(UdpSocket::bind(any(SEEN_PORT))?))?;
    let own = if to.is_ipv4() { OUTSIDE[0] } else { OUTSIDE[1] };
    let client = scene.cluster.fabric().run(|| {
        let client = UdpSocket::bind((own, 0))?;
        client.connect(to)?;
        Ok(client)
    })?;
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(limit))?;
    }
    let mut bytes = [0; 8];
    client.send(b"?")?;
    let (_, source) = server.recv_from(&mut bytes).context("the server hears nothing")?;
    server.send_to(b"!", source)?;
    client.recv(&mut bytes).context("the client hears nothing")?;
    Ok((source, client.local_addr()?))
}

#[test]
fn an_endpoint_here_sees_the_client_and_one_elsewhere_sees_the_node() -> Result<()> {
    for masquerade in ["auto", "nftables"] {
        let is_auto = masquerade == "auto";
        let is_port = |port| if is_auto { is_source_port(port) } else { port >= 32_768 };
        play_with(masquerade, |scene, _| {
            ensure!(tables(scene)?.is_empty() == is_auto, "{}", tables(scene)?);
            for (pod, is_here) in [("a", true), ("b", false)] {
                put_seen(scene, pod)?;
                for (place, to) in SEEN.iter().enumerate() {
                    let to: SocketAddr = to.parse()?;
                    let both = [seen_by_tcp(scene, pod, to)?, seen_by_udp(scene, pod, to)?];
                    for (source, own) in both {
                        let ip = source.ip().to_canonical();
                        if is_here {
                            let same = (ip, source.port()) == (own.ip(), own.port());
                            ensure!(same, "{pod} sees {source}, and not {own}");
                        } else {
                            ensure!(ip == NODE[place].parse::<IpAddr>()?, "{pod} sees {source}");
                            ensure!(is_port(source.port()), "{pod} sees {source}");
                        }
                    }
                }
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Sends 4 MiB to `to`, and gets them back from an endpoint in pod b.
fn echo(scene: &Scene<'_>, to: SocketAddr) -> Result<()> {
    let any = (Ipv6Addr::UNSPECIFIED, SEEN_PORT);
    let server = scene.cluster.pod("b")?.netns().run(|| Ok(TcpListener::bind(any)?))?;
    let limit = patient(Duration::from_secs(10));
    let client = scene.cluster.fabric().run(|| Ok(TcpStream::connect_timeout(&to, limit)?))?;
    let (accepted, _) = server.accept()?;
    for stream in [&client, &accepted] {
        stream.set_read_timeout(Some(limit))?;
        stream.set_write_timeout(Some(limit))?;
    }
    let sent: Vec<u8> =
        (0..4 << 20).map(|at: u32| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
    let got = thread::scope(|scope| -> Result<Vec<u8>> {
        let (mut from, mut to) = (&accepted, &accepted);
        scope.spawn(move || std::io::copy(&mut from, &mut to));
        let (mut writer, bytes) = (&client, &sent);
        scope.spawn(move || writer.write_all(bytes));
        let mut got = vec![0; sent.len()];
        let read = (&client).read_exact(&mut got);
        // The copy ends with the stream.
        client.shutdown(Shutdown::Both)?;
        read.map(|()| got).map_err(Into::into)
    })?;
    ensure!(got == sent, "other bytes came back from {to}");
    Ok(())
}

/// Datagrams that take several packets, each way.
fn echo_fragments(scene: &Scene<'_>, place: usize, to: SocketAddr) -> Result<()> {
    wait_for_udp(scene, "b", to)?;
    let any = (Ipv6Addr::UNSPECIFIED, SEEN_PORT);
    let server = scene.cluster.pod("b")?.netns().run(|| Ok(UdpSocket::bind(any)?))?;
    let client = scene.cluster.fabric().run(|| {
        let client = UdpSocket::bind((OUTSIDE[place], 0))?;
        client.connect(to)?;
        Ok(client)
    })?;
    for socket in [&server, &client] {
        socket.set_read_timeout(Some(patient(Duration::from_secs(2))))?;
    }
    let sent: Vec<u8> = (0..6_000_u32).map(|at| (at % 251) as u8).collect();
    let mut bytes = [0; 8_192];
    client.send(&sent)?;
    let (length, source) = server.recv_from(&mut bytes).context("the server hears nothing")?;
    ensure!(bytes[..length] == sent, "{length} bytes arrive");
    server.send_to(&sent, source)?;
    let length = client.recv(&mut bytes).context("the client hears nothing")?;
    ensure!(bytes[..length] == sent, "{length} bytes return");
    Ok(())
}

#[test]
fn long_streams_and_datagrams_pass_to_another_node_and_back() -> Result<()> {
    play_with("auto", |scene, _| {
        put_seen(scene, "b")?;
        for (place, to) in SEEN.iter().enumerate() {
            let to: SocketAddr = to.parse()?;
            seen_by_tcp(scene, "b", to)?;
            echo(scene, to)?;
            echo_fragments(scene, place, to)?;
        }
        Ok(())
    })
}

/// Waits until the node has the masquerade table, or none.
fn wait_for_table(scene: &Scene<'_>, is_there: bool) -> Result<()> {
    until("the table", FOLLOWS, || {
        let now = tables(scene)?;
        Ok(if now.starts_with("table inet topo-lb {") == is_there { Ok(()) } else { Err(now) })
    })?;
    Ok(())
}

#[test]
fn a_tunnel_brings_the_table_and_open_connections_go_on() -> Result<()> {
    play_with("auto", |scene, client| {
        scene.set_endpoints("web", &["b"])?;
        wait_at_each(client, &["b"])?;
        wait_for_table(scene, false)?;
        let mut sockets = Vec::new();
        let mut open = |client: &mut Client| -> Result<()> {
            for (via, address) in WEB.into_iter().filter(|(via, _)| *via == Via::Http) {
                let to: SocketAddr = address.parse()?;
                let socket = client.open(via, to)??;
                sockets.push((socket, to));
            }
            for &(socket, to) in &sockets {
                let reply = client.ask(socket, Some(to))??;
                ensure!(reply.pod == "b", "{reply:?}");
            }
            Ok(())
        };
        open(client).context("by the programs")?;
        scene.cluster.ip_on(HERE, &[TUNNEL.to_owned(), "link set tunnel up".to_owned()])?;
        wait_for_table(scene, true)?;
        let said = "by the nftables table inet topo-lb: tunnel may lead to other nodes, too";
        ensure!(scene.agent.log().contains(said), "{}", scene.agent.log());
        open(client).context("by the table")?;
        wait_at_each(client, &["b"])?;

        // It stays while connections need it.
        scene.cluster.ip_on(HERE, &["link delete tunnel".to_owned()])?;
        scene.agent.kill();
        scene.agent.resume()?;
        open(client).context("with the next agent")?;
        wait_for_table(scene, true)?;
        let said = "by the nftables table inet topo-lb: connections need it that an earlier agent";
        ensure!(scene.agent.log().contains(said), "{}", scene.agent.log());
        Ok(())
    })
}

#[test]
fn the_next_agent_removes_a_table_that_no_connection_needs() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--masquerade", "nftables");
        scene.agent.resume()?;
        wait_for_table(scene, true)?;
        scene.agent.stop()?;
        scene.agent.set("--masquerade", "auto");
        scene.agent.resume()?;
        wait_for_table(scene, false)?;
        let mut client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        scene.set_endpoints("web", &["b"])?;
        wait_at_each(&mut client, &["b"])
    })
}

#[test]
fn ports_of_the_nodes_own_clients_and_ipsec_leave_it_to_the_kernel() -> Result<()> {
    play_with("auto", |scene, client| {
        scene.set_endpoints("web", &["b"])?;
        wait_for_table(scene, false)?;
        let node = scene.cluster.node_netns(HERE)?;
        node.set(&[("ipv4/ip_local_port_range", "1024 65000")])?;
        wait_for_table(scene, true)?;
        let said = "clients of this node have ports 1024 to 65000";
        ensure!(scene.agent.log().contains(said), "{}", scene.agent.log());
        wait_at_each(client, &["b"])?;
        Ok(())
    })?;
    play_with("auto", |scene, client| {
        scene.set_endpoints("web", &["b"])?;
        wait_for_table(scene, false)?;
        let policy = "xfrm policy add src 192.0.2.0/24 dst 198.51.100.0/24 dir out action block";
        scene.cluster.ip_on(HERE, &[policy.to_owned()])?;
        wait_for_table(scene, true)?;
        ensure!(scene.agent.log().contains("IPsec policies"), "{}", scene.agent.log());
        wait_at_each(client, &["b"])
    })
}

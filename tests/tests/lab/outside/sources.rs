//! Which source endpoints see, and who gives it to them.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use socket2::{Domain, Protocol, Socket as RawSocket, Type};
use topo_lb_common::snat::is_source_port;
use topo_lb_tests::client::Client;
use topo_lb_tests::flood::flood;
use topo_lb_tests::frame;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::process::printed;
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene};
use topo_lb_tests::traffic::{Socket, Via};
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

/// A socket in `pod` at [`SEEN_PORT`].
pub(super) fn bound<T>(
    scene: &Scene<'_>,
    pod: &str,
    bind: impl Fn(SocketAddr) -> io::Result<T> + Send + Sync,
) -> Result<T>
where
    T: Send,
{
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, SEEN_PORT));
    let mut socket = None;
    // A process that another test just starts still has the descriptor of an earlier socket.
    until("the port", FOLLOWS, || {
        let bound = scene.cluster.pod(pod)?.netns().run(|| Ok(bind(any)))?;
        Ok(bound.map(|bound| socket = Some(bound)))
    })?;
    socket.context("a socket")
}

/// The source that a server in `pod` sees of a TCP connection from outside, and the client's own
/// address. A byte goes each way.
fn seen_by_tcp(scene: &Scene<'_>, pod: &str, to: SocketAddr) -> Result<(SocketAddr, SocketAddr)> {
    let limit = patient(Duration::from_secs(2));
    let server = bound(scene, pod, TcpListener::bind)?;
    server.set_nonblocking(true)?;
    let mut connected = None;
    until("a connection", FOLLOWS, || {
        let fabric = scene.cluster.fabric();
        let client = match fabric.run(|| Ok(TcpStream::connect_timeout(&to, limit)))? {
            Ok(client) => client,
            Err(error) => return Ok(Err(error.to_string())),
        };
        // The client is connected before its last packet arrives.
        for _ in 0..100 {
            match server.accept() {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    thread::sleep(Duration::from_millis(10));
                }
                other => {
                    connected = Some((client, other?));
                    return Ok(Ok(()));
                }
            }
        }
        Ok(Err("another endpoint took it".to_owned()))
    })?;
    let (mut client, (mut accepted, source)) = connected.context("a connection")?;
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
    let server = bound(scene, pod, UdpSocket::bind)?;
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
    let limit = patient(Duration::from_secs(2));
    let server = bound(scene, pod, UdpSocket::bind)?;
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
    let server = bound(scene, "b", TcpListener::bind)?;
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
        scope.spawn(move || io::copy(&mut from, &mut to));
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
    let server = bound(scene, "b", UdpSocket::bind)?;
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
        Ok(if now.contains("table inet topo-lb {") == is_there { Ok(()) } else { Err(now) })
    })?;
    Ok(())
}

/// TCP connections of a client outside to pod b. They close with it.
struct Opened {
    client: Client,
    sockets: Vec<(Socket, SocketAddr)>,
}

impl Opened {
    fn none(scene: &Scene<'_>) -> Result<Self> {
        let client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        Ok(Self { client, sockets: Vec::new() })
    }

    /// Opens one to each TCP port of `web`, and checks that all go on.
    fn more(&mut self) -> Result<()> {
        for (via, address) in WEB.into_iter().filter(|(via, _)| *via == Via::Http) {
            let to: SocketAddr = address.parse()?;
            let socket = self.client.open(via, to)??;
            self.sockets.push((socket, to));
        }
        self.go_on()
    }

    fn go_on(&mut self) -> Result<()> {
        for &(socket, to) in &self.sockets {
            let reply = self.client.ask(socket, Some(to))??;
            ensure!(reply.pod == "b", "{reply:?}");
        }
        Ok(())
    }
}

/// The agent looks every 10 s whether somebody else still changes sources, and every 5 s whether connections
/// need the table, which a closed one does for 10 s.
const LOOKS_AGAIN: Duration = Duration::from_secs(30);

/// Waits until the agent's last word on who gives connections their source is this.
fn wait_for_word(scene: &Scene<'_>, word: &str) -> Result<()> {
    until("the agent's word", LOOKS_AGAIN, || {
        let log = scene.agent.log();
        let last = log.lines().rfind(|line| line.contains("get their source by"));
        let last = last.unwrap_or_default();
        Ok(if last.contains(word) { Ok(()) } else { Err(last.to_owned()) })
    })?;
    Ok(())
}

const BY_TC: &str = "get their source by tc";

/// Checks who does it by the agent's metric: tc, nftables.
fn ensure_measured(scene: &Scene<'_>, wanted: [f64; 2]) -> Result<()> {
    let metrics = scene.agent.get("/metrics")?;
    for (by, wanted) in ["tc", "nftables"].into_iter().zip(wanted) {
        let sample = metrics.sample(&format!("topo_lb_source_nat{{by=\"{by}\"}}"));
        ensure!(sample == Some(wanted), "{by}: {sample:?}");
    }
    Ok(())
}

/// Checks that what `begins` on the node brings the table, and what `ends` it tc, while connections are
/// open. `says`: the agent's reason.
fn changes_who_does_it(begins: &[&str], says: &str, ends: &str) -> Result<()> {
    play_with("auto", |scene, client| {
        scene.set_endpoints("web", &["b"])?;
        wait_at_each(client, &["b"])?;
        wait_for_table(scene, false)?;
        let node = scene.cluster.node_netns(HERE)?;
        let run = |line: &str| -> Result<()> {
            let mut words = line.split(' ');
            let mut command = Command::new(words.next().context("a command")?);
            node.run(|| printed(command.args(words)))?;
            Ok(())
        };
        let (mut by_tc, mut by_table) = (Opened::none(scene)?, Opened::none(scene)?);
        by_tc.more().context("by tc")?;
        begins.iter().try_for_each(|line| run(line))?;
        wait_for_table(scene, true)?;
        wait_for_word(scene, says)?;
        by_table.more().context("by the table")?;
        ensure_measured(scene, [0.0, 1.0])?;
        by_tc.go_on().context("of tc")?;
        run(ends)?;
        wait_for_word(scene, BY_TC)?;
        by_tc.more().context("by tc again")?;
        by_table.go_on().context("of the table")?;
        let listed = tables(scene)?;
        ensure!(listed.contains("table inet topo-lb"), "connections still need it: {listed}");
        ensure_measured(scene, [1.0, 0.0])?;
        Ok(())
    })
}

#[test]
fn a_tunnel_brings_the_table_and_its_end_tc() -> Result<()> {
    let begins = [&format!("ip {TUNNEL}"), "ip link set tunnel up"];
    let says = "by the nftables table inet topo-lb: tunnel may lead to other nodes, too";
    changes_who_does_it(&begins, says, "ip link delete tunnel")
}

#[test]
fn source_nat_of_others_brings_the_table_and_its_end_tc() -> Result<()> {
    let begins = [
        "nft add table ip plugin",
        "nft add chain ip plugin leave { type nat hook postrouting priority 100 ; }",
        "nft add rule ip plugin leave ip saddr 10.244.0.0/16 oifname nothing0 masquerade",
    ];
    let says = "the chain leave of the nftables table plugin is for them, too";
    changes_who_does_it(&begins, says, "nft delete table ip plugin")
}

#[test]
fn a_firewall_for_forwarded_packets_brings_the_table_and_its_end_tc() -> Result<()> {
    for hook in ["forward", "ingress device eth0"] {
        let begins = [
            "nft add table inet wall",
            &format!("nft add chain inet wall out {{ type filter hook {hook} priority 0 ; }}"),
            "nft add rule inet wall out ip saddr 198.51.100.0/24 drop",
            // This one stays: packets that are routed do not pass it.
            "nft add table bridge wall",
            "nft add chain bridge wall out { type filter hook forward priority 0 ; }",
            "nft add rule bridge wall out drop",
        ];
        let says = "the chain out of the nftables table wall is for them, too";
        changes_who_does_it(&begins, says, "nft delete table inet wall")
            .with_context(|| format!("hook {hook}"))?;
    }
    Ok(())
}

#[test]
fn a_rule_of_routing_brings_the_table_and_its_end_tc() -> Result<()> {
    let begins = ["ip rule add fwmark 0x77 lookup 100 priority 50"];
    let says = "the rule of `ip rule` with priority 50 may lead to other nodes in another way";
    changes_who_does_it(&begins, says, "ip rule delete priority 50")
}

#[test]
fn the_table_goes_once_no_connection_needs_it() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--masquerade", "nftables");
        scene.agent.resume()?;
        let mut by_table = Opened::none(scene)?;
        scene.set_endpoints("web", &["b"])?;
        for (via, address) in WEB.into_iter().filter(|(via, _)| *via == Via::Http) {
            by_table.client.wait_for(via, address.parse()?, &["b"], FOLLOWS)?;
        }
        by_table.more()?;
        wait_for_table(scene, true)?;
        scene.agent.stop()?;
        // Maps of another size: the connections are copied to them.
        scene.agent.set("--masquerade", "auto");
        scene.agent.set("--max-connections", "32768");
        scene.agent.resume()?;
        wait_for_word(scene, BY_TC)?;
        let mut by_tc = Opened::none(scene)?;
        by_tc.more()?;
        scene.agent.wait_for_log("connections still need the nftables table", LOOKS_AGAIN)?;
        by_table.go_on().context("with the next agent")?;
        drop(by_table);
        let removed = "removed the nftables table inet topo-lb";
        scene.agent.wait_for_log(removed, LOOKS_AGAIN)?;
        wait_for_table(scene, false)?;
        by_tc.more().context("without the table")
    })
}

#[test]
fn a_frame_with_a_priority_and_no_vlan_is_served() -> Result<()> {
    play_with("auto", |scene, _| {
        put_seen(scene, "b")?;
        let to: SocketAddr = SEEN[0].parse()?;
        wait_for_udp(scene, "b", to)?;
        let server = bound(scene, "b", UdpSocket::bind)?;
        let fabric = scene.cluster.fabric();
        let client = fabric.run(|| Ok(UdpSocket::bind((OUTSIDE[0], 0))?))?;
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(patient(Duration::from_secs(2))))?;
        }
        let mac = |netns: &NetNs, device: &str| -> Result<Vec<u8>> {
            let listed = netns
                .run(|| printed(Command::new("ip").args(["-j", "link", "show", "dev", device])))?;
            let listed: Value = serde_json::from_str(&listed)?;
            let address = listed[0]["address"].as_str().context("an address")?;
            address.split(':').map(|byte| Ok(u8::from_str_radix(byte, 16)?)).collect()
        };
        let plain = frame::udp(client.local_addr()?, to, b"tagged");
        let mut tagged = mac(scene.cluster.node_netns(HERE)?, "eth0")?;
        tagged.extend(mac(fabric, "br0")?);
        // 802.1Q, priority 3, VLAN 0.
        tagged.extend([0x81, 0, 0x60, 0]);
        tagged.extend(&plain[12..]);
        flood(fabric, "br0", &[tagged], Duration::ZERO)?;
        let mut bytes = [0; 8];
        let (length, source) = server.recv_from(&mut bytes).context("the server hears nothing")?;
        ensure!(&bytes[..length] == b"tagged", "{length} bytes");
        ensure!(is_source_port(source.port()), "{source} was not given by tc");
        server.send_to(b"!", source)?;
        let (_, from) = client.recv_from(&mut bytes).context("the client hears nothing")?;
        ensure!(from == to, "{from}");
        Ok(())
    })
}

#[test]
fn a_pod_cannot_end_a_connection_of_a_client() -> Result<()> {
    play_with("auto", |scene, _| {
        put_seen(scene, "b")?;
        let to: SocketAddr = SEEN[1].parse()?;
        wait_for_udp(scene, "b", to)?;
        let server = bound(scene, "b", UdpSocket::bind)?;
        let client = scene.cluster.fabric().run(|| Ok(UdpSocket::bind((OUTSIDE[1], 0))?))?;
        for socket in [&server, &client] {
            socket.set_read_timeout(Some(patient(Duration::from_secs(2))))?;
        }
        let mut bytes = [0; 8];
        client.send_to(b"?", to)?;
        let (_, source) = server.recv_from(&mut bytes).context("the server hears nothing")?;
        server.send_to(b"!", source)?;
        client.recv_from(&mut bytes).context("the client hears nothing")?;
        // A datagram with the node's address and the connection's port.
        let endpoint = SocketAddr::from((scene.cluster.pod("b")?.ipv6, SEEN_PORT));
        let forged = frame::udp(source, endpoint, b"forged");
        scene.cluster.pod("a")?.netns().run(|| {
            let raw =
                RawSocket::new(Domain::IPV6, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
            raw.send_to(&forged[14..], &SocketAddr::new(endpoint.ip(), 0).into())?;
            Ok(())
        })?;
        let (length, from) = server.recv_from(&mut bytes).context("the forged datagram")?;
        ensure!((&bytes[..length], from) == (&b"forged"[..], source), "{from}");
        server.send_to(b"!", source)?;
        client.recv_from(&mut bytes).context("the client hears nothing more")?;
        Ok(())
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
        wait_for_word(scene, "clients of this node have ports 1024 to 65000")?;
        wait_at_each(client, &["b"])?;
        Ok(())
    })?;
    play_with("auto", |scene, client| {
        scene.set_endpoints("web", &["b"])?;
        wait_for_table(scene, false)?;
        let policy = "xfrm policy add src 192.0.2.0/24 dst 198.51.100.0/24 dir out action block";
        scene.cluster.ip_on(HERE, &[policy.to_owned()])?;
        wait_for_table(scene, true)?;
        wait_for_word(scene, "IPsec policies")?;
        wait_at_each(client, &["b"])
    })
}

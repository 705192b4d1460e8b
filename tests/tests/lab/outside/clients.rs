//! Where connections from outside go, and which source address endpoints see.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use socket2::{Domain, Socket, Type};
use topo_lb_tests::process::printed;
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene, WEB4, WEB6, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{patient, until};

use super::scene::{BALANCER, OUTSIDE, WEB, expect_dropped, packets_at, play, set, wait_at_each};
use super::sources::{SEEN, SEEN_PORT, bound, put_seen, wait_for_udp};

#[test]
fn every_frontend_leads_to_endpoints_of_this_node_and_of_others() -> Result<()> {
    play(|scene, client| {
        for (via, address) in WEB {
            client.wait_for(via, address.parse()?, &ALL, FOLLOWS)?;
            client.expect(via, address.parse()?, &ALL)?;
        }
        for address in BALANCER {
            client.wait_for(Via::Http, at(address)?, &ALL, FOLLOWS)?;
            client.expect(Via::UdpConnected, at(address)?, &ALL)?;
        }
        // Clients of the node, as before.
        scene.expect(Via::Http, at(WEB4)?, &ALL)?;
        scene.expect(Via::Http, at(WEB6)?, &ALL)?;
        scene.expect(Via::Http, at(BALANCER[0])?, &ALL)?;
        scene.expect(Via::Http, WEB[0].1.parse()?, &ALL)
    })
}

/// Where the answer to a client's datagram comes from, if a server in `pod` answers once.
fn answers_from(client: &UdpSocket, server: &UdpSocket, to: SocketAddr) -> Result<SocketAddr> {
    let mut bytes = [0; 8];
    client.send_to(b"?", to)?;
    let (_, source) =
        server.recv_from(&mut bytes).with_context(|| format!("{to} hears nothing"))?;
    server.send_to(b"!", source)?;
    let (_, from) =
        client.recv_from(&mut bytes).with_context(|| format!("{to} does not answer"))?;
    Ok(from)
}

#[test]
fn one_port_of_a_client_may_use_a_node_port_and_its_endpoint_in_turn() -> Result<()> {
    play(|scene, _| {
        put_seen(scene, "a")?;
        let pod = scene.cluster.pod("a")?;
        for (place, endpoint) in [IpAddr::V4(pod.ipv4), pod.ipv6.into()].into_iter().enumerate() {
            let node_port: SocketAddr = SEEN[place].parse()?;
            wait_for_udp(scene, "a", node_port)?;
            let server = bound(scene, "a", UdpSocket::bind)?;
            let client =
                scene.cluster.fabric().run(|| Ok(UdpSocket::bind((OUTSIDE[place], 0))?))?;
            for socket in [&server, &client] {
                socket.set_read_timeout(Some(patient(Duration::from_secs(2))))?;
            }
            let direct = SocketAddr::new(endpoint, SEEN_PORT);
            for to in [node_port, direct, direct, node_port, direct] {
                let from = answers_from(&client, &server, to)?;
                ensure!(from == to, "{to} was asked, and {from} answers");
            }
        }
        Ok(())
    })
}

#[test]
fn a_datagram_that_passes_two_uplinks_keeps_its_connection() -> Result<()> {
    play(|scene, client| {
        scene.set_endpoints("web", &["a"])?;
        wait_at_each(client, &["a"])?;
        let ip = |line: &str| scene.cluster.ip_on(HERE, &[line.to_owned()]);
        // With the address of eth0: a frame to another one is left alone there.
        ip("link add link eth0 name second type macvlan mode passthru")?;
        ip("link set second up")?;
        ip("address add 198.51.100.9/24 dev second")?;
        until("the second uplink", FOLLOWS, || {
            let metrics = scene.agent.get("/metrics")?;
            let sample = metrics.sample("topo_lb_devices{role=\"external\"}");
            Ok(if sample == Some(2.0) { Ok(()) } else { Err(format!("{sample:?}")) })
        })?;
        // Packets of the client now pass both devices: the kernel gives them to eth0's programs first.
        wait_at_each(client, &["a"])
    })
}

#[test]
fn with_the_policy_local_clients_outside_get_endpoints_of_this_node_or_no_answer() -> Result<()> {
    play(|scene, client| {
        wait_at_each(client, &ALL)?;
        scene.change(|it| set(it, "externalTrafficPolicy", json!("Local")))?;
        wait_at_each(client, &["a"])?;
        client.wait_for(Via::Http, at(BALANCER[0])?, &["a"], FOLLOWS)?;
        // The node's own clients are not limited.
        scene.expect(Via::Http, WEB[0].1.parse()?, &ALL)?;

        scene.set_endpoints("web", &["b", "c"])?;
        scene.wait_for(Via::Http, WEB[0].1.parse()?, &["b", "c"])?;
        expect_dropped(scene, WEB[0].1.parse()?)?;
        expect_dropped(scene, WEB[3].1.parse()?)?;
        expect_dropped(scene, at(BALANCER[0])?)?;

        scene.change(|it| set(it, "externalTrafficPolicy", json!("Cluster")))?;
        wait_at_each(client, &["b", "c"])
    })
}

#[test]
fn without_an_endpoint_anywhere_clients_outside_are_refused_at_once() -> Result<()> {
    play(|scene, client| {
        wait_at_each(client, &ALL)?;
        scene.set_endpoints("web", &[])?;
        for (via, address) in WEB {
            // An unconnected socket hears of no ICMP error.
            if via != Via::Udp {
                client.wait_for(via, address.parse()?, &[], FOLLOWS)?;
            }
        }
        let tally = client.call(Via::Http, WEB[0].1.parse()?, 20)?;
        ensure!(tally.is_at_once(), "{} us", tally.median_us);
        Ok(())
    })
}

/// What a client outside gets that goes on with a connection that nobody knows: `TCP_REPAIR` makes it.
fn go_on(scene: &Scene<'_>, to: SocketAddr) -> Result<io::Result<usize>> {
    let repair = |stream: &Socket, value: libc::c_int| {
        let (of, length) = ((&raw const value).cast(), size_of_val(&value) as libc::socklen_t);
        let (tcp, option) = (libc::IPPROTO_TCP, libc::TCP_REPAIR);
        // SAFETY: the value outlives the call, and has this length.
        let result = unsafe { libc::setsockopt(stream.as_raw_fd(), tcp, option, of, length) };
        ensure!(result == 0, "TCP_REPAIR: {}", io::Error::last_os_error());
        Ok(())
    };
    scene.cluster.fabric().run(|| {
        let stream = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        repair(&stream, 1)?;
        stream.connect(&to.into())?;
        repair(&stream, 0)?;
        let mut stream = TcpStream::from(stream);
        stream.set_read_timeout(Some(patient(Duration::from_secs(2))))?;
        Ok(stream.write_all(b"?").and_then(|()| stream.read(&mut [0])))
    })
}

#[test]
fn a_connection_that_nobody_knows_is_reset_at_a_load_balancer_ip_and_makes_no_loop() -> Result<()> {
    play(|scene, client| {
        wait_at_each(client, &ALL)?;
        for pods in [&ALL[..], &[]] {
            scene.set_endpoints("web", pods)?;
            client.wait_for(Via::Http, WEB[0].1.parse()?, pods, FOLLOWS)?;
            client.wait_for(Via::Http, WEB[3].1.parse()?, pods, FOLLOWS)?;
            for to in BALANCER {
                let before = packets_at(scene, "tc egress", "refused")?;
                let got = go_on(scene, at(to)?)?;
                let is_reset = |it: &io::Error| it.kind() == ErrorKind::ConnectionReset;
                ensure!(got.as_ref().is_err_and(is_reset), "{to}: {got:?}");
                ensure!(packets_at(scene, "tc egress", "refused")? > before, "{to}: not on egress");
            }
        }
        Ok(())
    })
}

/// Has the node masquerade pod connections to ports 7 and 8 outside, by the source port 30080.
/// That is `web`'s node port: the kernel chooses such ports by chance, for a network plugin's rule.
fn masquerade_by_a_node_port(scene: &Scene<'_>) -> Result<()> {
    let rules = "add table inet plugin
        add chain inet plugin leave { type nat hook postrouting priority 50; }
        add rule inet plugin leave tcp dport 7-8 masquerade to :30080";
    let node = scene.cluster.node_netns(HERE)?;
    node.run(|| printed(Command::new("nft").arg(rules))).map(drop)
}

#[test]
fn answers_to_a_connection_by_a_node_port_pass_while_its_service_is_refused_or_dropped()
-> Result<()> {
    play(|scene, client| {
        wait_at_each(client, &ALL)?;
        masquerade_by_a_node_port(scene)?;
        let limit = patient(Duration::from_secs(2));
        let expect_answers = |scene: &Scene<'_>, port| {
            for own in OUTSIDE {
                let own: SocketAddr = (own.parse::<IpAddr>()?, port).into();
                let server = scene.cluster.fabric().run(|| Ok(TcpListener::bind(own)?))?;
                let pod = scene.cluster.pod("a")?.netns();
                let stream = pod.run(|| Ok(TcpStream::connect_timeout(&own, limit)));
                let mut stream = stream?.with_context(|| format!("pod a to {own}"))?;
                stream.set_read_timeout(Some(limit))?;
                let (mut accepted, source) = server.accept()?;
                ensure!(source.port() == 30_080, "{source}");
                accepted.write_all(b"!")?;
                stream.read_exact(&mut [0])?;
            }
            Ok(())
        };
        scene.set_endpoints("web", &[])?;
        client.wait_for(Via::Http, WEB[0].1.parse()?, &[], FOLLOWS)?;
        client.wait_for(Via::Http, WEB[3].1.parse()?, &[], FOLLOWS)?;
        expect_answers(scene, 7).context("refused")?;

        scene.change(|it| set(it, "externalTrafficPolicy", json!("Local")))?;
        scene.set_endpoints("web", &["b"])?;
        scene.wait_for(Via::Http, WEB[0].1.parse()?, &["b"])?;
        expect_dropped(scene, WEB[0].1.parse()?)?;
        expect_dropped(scene, WEB[3].1.parse()?)?;
        expect_answers(scene, 8).context("dropped")
    })
}

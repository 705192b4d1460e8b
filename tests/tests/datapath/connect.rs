//! The hooks connect4, connect6, getpeername4 and getpeername6: connected sockets.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::requirements::kernel;
use topo_lb_tests::scene::{
    ALL, ECHO4, EMPTY4, EMPTY6, FOLLOWS, HERE, NOBODY4, NOBODY6, Scene, WEB4, WEB6, at, idle,
    known, mapped, play, prepared,
};
use topo_lb_tests::traffic::{Step, Via, refusal};
use topo_lb_tests::wait::until_is;

const CONNECTED: [Via; 2] = [Via::Http, Via::UdpConnected];

#[test]
fn every_endpoint_answers_and_the_peer_is_the_service() -> Result<()> {
    play(|scene| {
        for via in CONNECTED {
            for to in known([at(WEB4)?, at(WEB6)?, mapped(WEB4)?]) {
                scene.expect(via, to, &ALL)?;
            }
        }
        Ok(())
    })
}

/// Linux 5.19 has `bpf_skc_to_mptcp_sock`: from then on the peer is the Service.
const MPTCP_PEERS: (u32, u32) = (5, 19);

#[test]
fn an_mptcp_socket_is_a_tcp_client() -> Result<()> {
    play(|scene| {
        for to in known([at(WEB4)?, at(WEB6)?, mapped(WEB4)?]) {
            let tally = scene.client.expect_of_any_peer(Via::HttpMptcp, to, &ALL)?;
            let is_service = tally.peers.iter().eq([&to]);
            ensure!(is_service || kernel() < MPTCP_PEERS, "{to}: {:?}", tally.peers);
        }
        Ok(())
    })
}

/// Further subflows connect to the endpoint; this must not overwrite the dialled address.
#[test]
fn the_peer_of_an_mptcp_socket_with_two_subflows_is_the_service_too() -> Result<()> {
    const SERVICE: &str = "10.96.1.9";
    const SECOND: &str = "10.244.1.66";
    ensure!(kernel() >= MPTCP_PEERS, "needs Linux 5.19");
    play(|scene| {
        let client = scene.cluster.pod("client")?.netns();
        let server = scene.cluster.pod("a")?;
        let subflows = "mptcp limits set subflow 2 add_addr_accepted 2".to_owned();
        client.ip(&[
            format!("addr add {SECOND}/32 dev eth0"),
            subflows.clone(),
            format!("mptcp endpoint add {SECOND} dev eth0 subflow"),
        ])?;
        server.netns().ip(&[subflows])?;
        scene.cluster.ip_on(HERE, &[format!("route add {SECOND}/32 dev pod2")])?;
        let _server = server.serve_mptcp_as("many", 9400)?;
        let endpoints = [endpoint(&server.ipv4.to_string(), &server.node, &server.name)];
        scene.manifests.put(slice("many", "IPv4", &[("http", 9400, "TCP")], &endpoints));
        scene.put(service("many", &[SERVICE], &[("http", 80, "TCP")], &[]))?;
        let to = at(SERVICE)?;
        // Uses TCP, which has no subflows.
        scene.wait_for(Via::Http, to, &["many"])?;
        let before = joined(client)?;
        let socket = scene.client.open(Via::HttpMptcp, to)??;
        // Only after data does the kernel know that both ends speak MPTCP.
        scene.client.ask(socket, None)??;
        until_is("a second subflow", FOLLOWS, || joined(client), |now| *now > before)?;
        let reply = scene.client.ask(socket, None)??;
        ensure!(reply.peer == to, "{reply:?}");
        Ok(())
    })
}

/// The number of further MPTCP subflows that were answered.
fn joined(netns: &NetNs) -> Result<u64> {
    let text = netns.run(|| Ok(fs::read_to_string("/proc/thread-self/net/netstat")?))?;
    let mut rows = text.lines().filter_map(|line| line.strip_prefix("MPTcpExt: "));
    let names = rows.next().context("the kernel counts MPTCP")?.split(' ');
    let values = rows.next().context("the kernel counts MPTCP")?.split(' ');
    let mut counts = names.zip(values);
    let (_, count) = counts.find(|(name, _)| *name == "MPJoinSynAckRx").context("a count")?;
    Ok(count.parse()?)
}

#[test]
fn the_peer_of_a_tcp_socket_is_the_endpoint_where_that_is_asked_for() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--tcp-peer", "endpoint");
        scene.agent.resume()?;
        for to in [at(WEB4)?, at(WEB6)?, mapped(WEB4)?] {
            let tally = scene.client.expect_of_any_peer(Via::Http, to, &ALL)?;
            ensure!(tally.peers.len() == 4 && !tally.peers.contains(&to), "{tally:?}");
        }
        // UDP clients compare addresses, so they still see the Service's.
        scene.expect(Via::UdpConnected, at(WEB4)?, &ALL)
    })
}

/// Calls a Service without endpoints, and checks that every request is refused.
fn expect_refusals(scene: &mut Scene<'_>, via: Via) -> Result<()> {
    for to in known([at(EMPTY4)?, at(EMPTY6)?, mapped(EMPTY4)?]) {
        let tally = scene.client.call(via, to, 100)?;
        ensure!(tally.failures.len() == 1, "{via:?} to {to}: {tally}");
        let (failure, count) = tally.failures[0];
        let step = if via == Via::Udp { Step::Send } else { Step::Connect };
        ensure!(failure.step == step, "{via:?} to {to}: {tally}");
        ensure!((failure.errno, count) == (refusal(), 100), "{via:?} to {to}: {tally}");
        // Nothing was sent, so nothing could time out.
        ensure!(tally.is_at_once(), "{via:?} to {to}: {} µs", tally.median_us);
    }
    Ok(())
}

#[test]
fn a_service_without_endpoints_refuses_at_once() -> Result<()> {
    play(|scene| {
        for via in [Via::Http, Via::UdpConnected, Via::Udp] {
            expect_refusals(scene, via)?;
        }
        Ok(())
    })
}

#[test]
fn an_mptcp_socket_is_refused_and_left_alone_as_others_are() -> Result<()> {
    play(|scene| {
        expect_refusals(scene, Via::HttpMptcp)?;
        for address in [WEB4, WEB6] {
            let mut port = at(address)?;
            port.set_port(81);
            scene.expect(Via::HttpMptcp, port, &["untouched"])?;
        }
        Ok(())
    })
}

#[test]
fn what_is_no_service_is_untouched() -> Result<()> {
    play(|scene| {
        for address in [WEB4, WEB6, EMPTY4, EMPTY6] {
            let mut port = at(address)?;
            port.set_port(81);
            for via in CONNECTED {
                scene.expect(via, port, &["untouched"])?;
            }
        }
        for via in CONNECTED {
            scene.expect(via, at(NOBODY4)?, &["untouched"])?;
            scene.expect(via, at(NOBODY6)?, &["untouched"])?;
        }
        scene.expect(Via::Http, mapped(NOBODY4)?, &["untouched"])?;
        // The protocol is part of a frontend.
        scene.expect(Via::Http, at(ECHO4)?, &["untouched"])?;
        for pod in ["a", "c"] {
            let pod = scene.cluster.pod(pod)?;
            scene.expect(Via::Http, pod.address4(), &[pod.name.as_str()])?;
            scene.expect(Via::UdpConnected, pod.address6(), &[pod.name.as_str()])?;
        }
        Ok(())
    })
}

#[test]
fn a_service_of_another_proxy_is_untouched() -> Result<()> {
    let change = |manifests: &mut topo_lb_tests::manifest::Manifests| {
        let mut other = service("web", &[WEB4, WEB6], &[("http", 80, "TCP")], &[]);
        other["metadata"]["labels"] = json!({"service.kubernetes.io/service-proxy-name": "other"});
        manifests.put(other);
    };
    prepared(change, |scene| {
        scene.agent.resume()?;
        scene.expect(Via::Http, at(WEB4)?, &["untouched"])?;
        scene.expect(Via::Http, at(WEB6)?, &["untouched"])?;
        scene.expect(Via::UdpConnected, at(ECHO4)?, &ALL)
    })
}

#[test]
fn opt_in_leaves_services_without_a_policy_untouched() -> Result<()> {
    idle(|scene| {
        scene.manifests.annotate("web", "topo-lb.io/topology-keys", Some("*"))?;
        scene.manifests.write()?;
        scene.agent.set("--scope", "opt-in");
        scene.agent.resume()?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)?;
        scene.expect(Via::UdpConnected, at(ECHO4)?, &["untouched"])?;
        scene.expect(Via::Http, at(EMPTY4)?, &["untouched"])
    })
}

#[test]
fn an_ipv4_service_leaves_ipv6_alone_and_the_other_way_round() -> Result<()> {
    let change = |manifests: &mut topo_lb_tests::manifest::Manifests| {
        manifests.put(service("web", &[WEB4], &[("http", 80, "TCP")], &[]));
    };
    prepared(change, |scene| {
        scene.agent.resume()?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)?;
        scene.expect(Via::Http, at(WEB6)?, &["untouched"])?;
        scene.put(service("web", &[WEB6], &[("http", 80, "TCP")], &[]))?;
        scene.wait_for(Via::Http, at(WEB4)?, &["untouched"])?;
        scene.expect(Via::Http, mapped(WEB4)?, &["untouched"])?;
        scene.expect(Via::Http, at(WEB6)?, &ALL)
    })
}

#[test]
fn every_one_of_more_endpoints_than_a_record_holds_answers() -> Result<()> {
    play(|scene| {
        // Twenty endpoints: five ports of four pods, one slice per port and family.
        let mut names = Vec::new();
        let mut servers = Vec::new();
        for port in 9400..9405u16 {
            for family in ["IPv4", "IPv6"] {
                let mut endpoints = Vec::new();
                for pod in ALL {
                    let pod = scene.cluster.pod(pod)?;
                    let address = match family {
                        "IPv4" => pod.ipv4.to_string(),
                        _ => pod.ipv6.to_string(),
                    };
                    endpoints.push(endpoint(&address, &pod.node, &pod.name));
                }
                let ports = [("http", port, "TCP"), ("udp", port, "UDP")];
                let mut slice = slice("web", family, &ports, &endpoints);
                slice["metadata"]["name"] = json!(format!("web-{family}-{port}"));
                scene.manifests.put(slice);
            }
            for pod in ALL {
                names.push(format!("{pod}-{port}"));
                servers.push(scene.cluster.pod(pod)?.serve_as(&format!("{pod}-{port}"), port)?);
            }
        }
        for family in ["ipv4", "ipv6"] {
            scene.manifests.remove("EndpointSlice", &format!("web-{family}"));
        }
        scene.manifests.write()?;
        for via in [Via::Http, Via::UdpConnected, Via::Udp] {
            for to in [at(WEB4)?, at(WEB6)?, mapped(WEB4)?] {
                scene.wait_for(via, to, &names.iter().map(String::as_str).collect::<Vec<_>>())?;
            }
        }
        Ok(())
    })
}

#[test]
fn a_socket_that_is_connected_elsewhere_forgets_the_service() -> Result<()> {
    play(|scene| {
        let socket = scene.client.open(Via::UdpConnected, at(WEB4)?)??;
        ensure!(scene.client.peer(socket)?? == at(WEB4)?);
        let direct = scene.cluster.pod("c")?.address4();
        scene.client.reconnect(socket, direct)??;
        let reply = scene.client.ask(socket, None)??;
        ensure!(reply.pod == "c" && reply.peer == direct, "{reply:?}");
        scene.client.reconnect(socket, at(ECHO4)?)??;
        let reply = scene.client.ask(socket, None)??;
        ensure!(reply.peer == at(ECHO4)?, "{reply:?}");
        Ok(())
    })
}

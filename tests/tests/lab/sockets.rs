//! Connected sockets after their endpoint stops serving: which are ended, and which never touched.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};
use topo_lb_core::cluster::Frontend;
use topo_lb_core::cluster::Protocol;
use topo_lb_kernel::datapath::maps::members::Members;
use topo_lb_tests::binary::row;
use topo_lb_tests::http::Answer;
use topo_lb_tests::process::without;
use topo_lb_tests::scene::{
    ALL, ECHO4, EMPTY4, FOLLOWS, HERE, KEYS, Scene, WEB4, ZONE, at, idle, pairs, play,
};
use topo_lb_tests::traffic::{Socket, Step, Via};

/// Twice the time after which the agent looks again whether there is something of kube-proxy.
const KUBE_PROXY_IS_GONE: Duration = Duration::from_secs(60);

/// Opens sockets to `to`, and returns them with their pods: all four, except 1 in 10 million times.
fn open(scene: &mut Scene<'_>, via: Via, to: SocketAddr) -> Result<Vec<(String, Socket)>> {
    let mut all = Vec::new();
    for _ in 0..64 {
        let socket = scene.client.open(via, to)??;
        all.push((ask(scene, socket, to)?, socket));
    }
    Ok(all)
}

/// One of the sockets to `pod`.
fn one(sockets: &[(String, Socket)], pod: &str) -> Result<Socket> {
    let found = sockets.iter().find(|(at, _)| at == pod);
    Ok(found.with_context(|| format!("no socket went to {pod}"))?.1)
}

/// An exchange through an open socket; checks the peer `to`, and returns the pod.
fn ask(scene: &mut Scene<'_>, socket: Socket, to: SocketAddr) -> Result<String> {
    let reply = scene.client.ask(socket, None)??;
    ensure!(reply.peer == to, "the peer is {} and not {to}", reply.peer);
    Ok(reply.pod)
}

/// Checks that an open socket still has its peer and its pod.
fn expect_alive(scene: &mut Scene<'_>, socket: Socket, to: SocketAddr, pod: &str) -> Result<()> {
    let answered = ask(scene, socket, to)?;
    ensure!(answered == pod, "{to}: {answered} answers, and not {pod}");
    Ok(())
}

/// Checks that a waiting socket is ended.
fn expect_ended(scene: &mut Scene<'_>, socket: Socket) -> Result<()> {
    let heard = scene.client.hear(socket)?;
    let ended = (heard.step, heard.errno) == (Step::Receive, Errno::CONNABORTED.raw_os_error());
    ensure!(ended, "the socket ended with {heard}");
    Ok(())
}

/// Checks that of these sockets exactly those to `gone` are ended, and returns how many.
fn expect_only(
    scene: &mut Scene<'_>,
    sockets: &[(String, Socket)],
    to: SocketAddr,
    gone: &str,
) -> Result<u64> {
    let mut ended = 0;
    for (pod, socket) in sockets.iter().filter(|(pod, _)| pod == gone) {
        expect_ended(scene, *socket).with_context(|| format!("{to}, {pod}"))?;
        ended += 1;
    }
    ensure!(ended > 0, "no socket went to {gone}");
    for (pod, socket) in sockets.iter().filter(|(pod, _)| pod != gone) {
        expect_alive(scene, *socket, to, pod)?;
    }
    Ok(ended)
}

/// Waits until the agent's metrics show these numbers of ended sockets, and no failures.
fn expect_counts(scene: &Scene<'_>, udp: u64, tcp: u64) -> Result<()> {
    let wanted = [
        format!("topo_lb_ended_sockets_total{{protocol=\"udp\"}} {udp}"),
        format!("topo_lb_ended_sockets_total{{protocol=\"tcp\"}} {tcp}"),
        "topo_lb_unended_sockets_total 0".to_owned(),
    ];
    let has = |body: &str, line: &String| body.lines().any(|other| other == line);
    let all = |answer: &Answer| wanted.iter().all(|line| has(&answer.body, line));
    scene.agent.wait_for_answer("/metrics", FOLLOWS, all).map(drop)
}

#[test]
fn a_connected_udp_socket_is_ended_when_its_endpoint_stops_serving() -> Result<()> {
    play(|scene| {
        let mut ended = 0;
        for (web, _) in pairs()? {
            let sockets = open(scene, Via::UdpConnected, web)?;
            scene.set_ready("b", false)?;
            ended += expect_only(scene, &sockets, web, "b")?;
            expect_counts(scene, ended, 0)?;
            // The application can continue with the same socket.
            let socket = one(&sockets, "b")?;
            let again = scene.client.reconnect(socket, web)?;
            ensure!(again.is_ok(), "{web}: {again:?}");
            ensure!(ask(scene, socket, web)? != "b");

            scene.set_ready("b", true)?;
            scene.wait_for(Via::UdpConnected, web, &ALL)?;
        }
        Ok(())
    })
}

/// What the kernel does with such a socket (udp_abort, net/ipv4/udp.c): it has an error, which whoever
/// receives gets once, and no peer any more.
#[test]
fn an_ended_socket_sends_to_nobody_until_it_connects_again() -> Result<()> {
    play(|scene| {
        let mut ended = 0;
        for (web, _) in pairs()? {
            let sockets = open(scene, Via::UdpConnected, web)?;
            scene.set_ready("b", false)?;
            ended += sockets.iter().filter(|(pod, _)| pod == "b").count() as u64;
            expect_counts(scene, ended, 0)?;
            let (first, second) = two(&sockets, "b")?;
            expect_ended(scene, first)?;
            for socket in [second, first] {
                for _ in 0..3 {
                    let asked = scene.client.exchange(socket, web, b"who?")?;
                    let failure = asked.err().context("a socket without a peer got an answer")?;
                    let wanted = (Step::Send, Errno::DESTADDRREQ.raw_os_error());
                    ensure!((failure.step, failure.errno) == wanted, "{web}: {failure}");
                }
            }
            // Sending has not used up the error of the one that did not receive.
            expect_ended(scene, second)?;
            for socket in [first, second] {
                scene.client.reconnect(socket, web)??;
                ensure!(ask(scene, socket, web)? != "b");
            }
            scene.set_ready("b", true)?;
            scene.wait_for(Via::UdpConnected, web, &ALL)?;
        }
        Ok(())
    })
}

/// Two of the sockets to `pod`.
fn two(sockets: &[(String, Socket)], pod: &str) -> Result<(Socket, Socket)> {
    let mut found = sockets.iter().filter(|(at, _)| at == pod).map(|(_, socket)| *socket);
    Ok((found.next().context("no socket")?, found.next().context("no second socket")?))
}

/// Opens a socket that is not translated, as nothing serves this ClusterIP yet.
fn open_early(scene: &mut Scene<'_>, via: Via, to: SocketAddr) -> Result<Socket> {
    let socket = scene.client.open(via, to)??;
    let pod = ask(scene, socket, to)?;
    ensure!(pod == "untouched", "{to}: {pod} answers");
    Ok(socket)
}

#[test]
fn a_udp_socket_that_connected_before_its_service_was_served_is_ended() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--kube-proxy-replacement", "");
        let mut early = Vec::new();
        for (web, _) in pairs()? {
            early.push((open_early(scene, Via::UdpConnected, web)?, web));
        }
        let (web, empty) = (at(WEB4)?, at(EMPTY4)?);
        let tcp = open_early(scene, Via::Http, web)?;
        let to_empty = open_early(scene, Via::UdpConnected, empty)?;

        scene.agent.resume()?;
        for (socket, web) in &early {
            expect_ended(scene, *socket)?;
            scene.client.reconnect(*socket, *web)??;
            let pod = ask(scene, *socket, *web)?;
            ensure!(ALL.contains(&&*pod), "{web}: {pod} answers");
        }
        expect_counts(scene, 3, 0)?;
        expect_alive(scene, tcp, web, "untouched")?;
        // Without an endpoint, no other socket would get any further.
        expect_alive(scene, to_empty, empty, "untouched")?;

        scene.set_endpoints("empty", &["a"])?;
        expect_ended(scene, to_empty)?;
        scene.client.reconnect(to_empty, empty)??;
        expect_alive(scene, to_empty, empty, "a")?;
        expect_counts(scene, 4, 0)?;

        // The next agent finds nothing more to end.
        scene.agent.stop()?;
        scene.agent.resume()?;
        scene.set_endpoints("empty", &["b"])?;
        expect_ended(scene, to_empty)?;
        expect_counts(scene, 1, 0)?;
        for (socket, web) in early {
            ask(scene, socket, web)?;
        }
        Ok(())
    })
}

#[test]
fn a_socket_that_another_proxy_may_translate_is_ended_only_once_that_is_gone() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--kube-proxy-replacement", "");
        let node = scene.cluster.node_netns(HERE)?;
        node.nft("add table ip kube-proxy; add chain ip kube-proxy services")?;
        let web = at(WEB4)?;
        let early = open_early(scene, Via::UdpConnected, web)?;
        scene.agent.resume()?;
        // The agent looks at the sockets of this Service.
        let sockets = open(scene, Via::UdpConnected, web)?;
        scene.set_ready("b", false)?;
        let ended = expect_only(scene, &sockets, web, "b")?;
        expect_counts(scene, ended, 0)?;
        expect_alive(scene, early, web, "untouched")?;

        // The agent finds that out by itself.
        node.nft("delete table ip kube-proxy")?;
        let one_more = format!("topo_lb_ended_sockets_total{{protocol=\"udp\"}} {}\n", ended + 1);
        let is_ended = |answer: &Answer| answer.body.contains(&one_more);
        scene.agent.wait_for_answer("/metrics", KUBE_PROXY_IS_GONE, is_ended)?;
        expect_ended(scene, early)?;
        scene.client.reconnect(early, web)??;
        ensure!(ask(scene, early, web)? != "untouched");
        Ok(())
    })
}

#[test]
fn a_service_that_is_deleted_ends_its_connected_udp_sockets() -> Result<()> {
    play(|scene| {
        let (web, echo) = (at(WEB4)?, at(ECHO4)?);
        let (of_web, of_echo) =
            (open(scene, Via::UdpConnected, web)?, open(scene, Via::UdpConnected, echo)?);
        scene.remove("Service", "web")?;
        for (_, socket) in &of_web {
            expect_ended(scene, *socket)?;
        }
        for (pod, socket) in &of_echo {
            expect_alive(scene, *socket, echo, pod)?;
        }
        Ok(())
    })
}

/// Restricts new connections to the zone of a and b, and makes b unready.
fn narrow(scene: &mut Scene<'_>) -> Result<()> {
    scene.change(|manifests| {
        manifests.annotate("web", KEYS, Some(ZONE))?;
        manifests.set_ready("b", false);
        Ok(())
    })
}

/// Undoes all changes, and waits until every endpoint answers.
fn widen(scene: &mut Scene<'_>, via: Via, web: SocketAddr) -> Result<()> {
    scene.change(|manifests| {
        ALL.into_iter().for_each(|pod| manifests.set_ready(pod, true));
        manifests.annotate("web", KEYS, None)
    })?;
    scene.wait_for(via, web, &ALL).map(drop)
}

#[test]
fn a_mere_change_of_topology_or_a_draining_endpoint_ends_no_socket() -> Result<()> {
    play(|scene| {
        let mut ended = 0;
        for (web, _) in pairs()? {
            let sockets = open(scene, Via::UdpConnected, web)?;
            // c and d are in other zones: not chosen for new connections. b becomes unready at the
            // same time, so that the agent inspects the sockets.
            narrow(scene)?;
            ended += expect_only(scene, &sockets, web, "b")?;
            expect_counts(scene, ended, 0)?;

            // c drains, and d is gone.
            let draining = json!({"ready": false, "serving": true, "terminating": true});
            scene.manifests.set_conditions("c", &draining);
            scene.set_ready("d", false)?;
            let rest: Vec<_> = sockets.into_iter().filter(|(pod, _)| pod != "b").collect();
            ended += expect_only(scene, &rest, web, "d")?;
            expect_counts(scene, ended, 0)?;

            widen(scene, Via::UdpConnected, web)?;
        }
        Ok(())
    })
}

#[test]
fn sockets_of_others_to_the_same_endpoint_are_never_touched() -> Result<()> {
    play(|scene| {
        for ((web, echo), to_b) in pairs()?.into_iter().zip(to_pod(scene, "b")?) {
            let of_web = open(scene, Via::UdpConnected, web)?;
            let of_echo = open(scene, Via::UdpConnected, echo)?;
            // Dialled without the Service.
            let direct = scene.client.open(Via::UdpConnected, to_b)??;
            expect_alive(scene, direct, to_b, "b")?;
            // Were connected to b through web, then through echo, directly, and to others of web.
            let mut moved = open(scene, Via::UdpConnected, web)?;
            moved.retain(|(pod, _)| pod == "b");
            ensure!(moved.len() >= 3, "{} sockets went to b", moved.len());
            let mut now = Vec::new();
            for ((_, socket), to) in moved.iter().zip([echo, to_b, web].into_iter().cycle()) {
                loop {
                    let reconnected = scene.client.reconnect(*socket, to)?;
                    reconnected.map_err(|failure| anyhow!("{to}: {failure}"))?;
                    let pod = ask(scene, *socket, to)?;
                    // Through web, a socket to b would be ended.
                    if to != web || pod != "b" {
                        now.push((*socket, to, pod));
                        break;
                    }
                }
            }
            let tcp = open(scene, Via::Http, web)?;

            scene.set_endpoints("web", &["a", "c", "d"])?;
            expect_only(scene, &of_web, web, "b")?;
            for (pod, socket) in &of_echo {
                expect_alive(scene, *socket, echo, pod)?;
            }
            expect_alive(scene, direct, to_b, "b")?;
            for (socket, to, pod) in now {
                expect_alive(scene, socket, to, &pod)?;
            }
            // TCP sockets are ended only with --terminate-tcp.
            for (pod, socket) in &tcp {
                expect_alive(scene, *socket, web, pod)?;
            }
            scene.set_endpoints("web", &ALL)?;
            scene.wait_for(Via::UdpConnected, web, &ALL)?;
        }
        Ok(())
    })
}

/// The addresses of a pod, in the order of [`pairs`].
fn to_pod(scene: &Scene<'_>, pod: &str) -> Result<[SocketAddr; 3]> {
    let pod = scene.cluster.pod(pod)?;
    let (four, six) = (pod.address4(), pod.address6());
    let SocketAddr::V4(inner) = four else { bail!("{four} is not IPv4") };
    Ok([four, six, (inner.ip().to_ipv6_mapped(), inner.port()).into()])
}

#[test]
fn tcp_sockets_are_ended_where_it_is_asked_for() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--terminate-tcp", "");
        scene.agent.resume()?;
        let (mut udp, mut tcp) = (0, 0);
        for ((web, _), to_b) in pairs()?.into_iter().zip(to_pod(scene, "b")?) {
            let streams = open(scene, Via::Http, web)?;
            let multipath = open(scene, Via::HttpMptcp, web)?;
            let datagrams = open(scene, Via::UdpConnected, web)?;
            let direct = scene.client.open(Via::Http, to_b)??;
            // Farther endpoints are not chosen for new connections; their sockets stay.
            narrow(scene)?;
            tcp += expect_only(scene, &streams, web, "b")?;
            udp += expect_only(scene, &datagrams, web, "b")?;
            expect_counts(scene, udp, tcp)?;
            expect_alive(scene, direct, to_b, "b")?;
            // Their subflows have no storage of their own.
            for (pod, socket) in &multipath {
                expect_alive(scene, *socket, web, pod)?;
            }
            widen(scene, Via::Http, web)?;
        }
        Ok(())
    })
}

#[test]
fn what_stopped_serving_while_no_agent_ran_is_found_at_the_next_start() -> Result<()> {
    play(|scene| {
        let web = at(WEB4)?;
        let sockets = open(scene, Via::UdpConnected, web)?;
        scene.agent.kill();
        scene.set_ready("b", false)?;
        for (pod, socket) in &sockets {
            expect_alive(scene, *socket, web, pod)?;
        }
        scene.agent.resume()?;
        let ended = expect_only(scene, &sockets, web, "b")?;
        expect_counts(scene, ended, 0)
    })
}

#[test]
fn an_endpoint_that_is_back_before_its_sockets_are_looked_at_has_its_membership() -> Result<()> {
    play(|scene| {
        for ((web, _), to_b) in pairs()?.into_iter().take(2).zip(to_pod(scene, "b")?) {
            let frontend = Frontend::new(web.ip(), 80, Protocol::Udp);
            let mut serves = Vec::new();
            for ready in [true, false, true] {
                scene.set_ready("b", ready)?;
                let pods: &[&str] = if ready { &ALL } else { &["a", "c", "d"] };
                scene.wait_for(Via::UdpConnected, web, pods)?;
                // The query that the agent makes before it ends a socket.
                let membership = Members::open(scene.agent.pins())?;
                serves.push(membership.serves(&frontend, to_b)?);
            }
            ensure!(serves == [true, false, true], "{web}: {serves:?}");
            let nobody = Frontend { port: 81, ..frontend };
            ensure!(!Members::open(scene.agent.pins())?.serves(&nobody, to_b)?);
        }
        Ok(())
    })
}

#[test]
fn a_socket_that_no_process_holds_is_left_alone() -> Result<()> {
    play(|scene| {
        let web = at(WEB4)?;
        let sockets = open(scene, Via::UdpConnected, web)?;
        // Like a socket of the kernel's own: nothing else tells them apart.
        let socket = one(&sockets, "b")?;
        scene.client.shelve(socket)?;
        scene.set_ready("b", false)?;
        let rest: Vec<_> = sockets.into_iter().filter(|(_, other)| *other != socket).collect();
        let ended = expect_only(scene, &rest, web, "b")?;
        expect_counts(scene, ended, 0)?;
        scene.client.unshelve(socket)?;
        expect_alive(scene, socket, web, "b")
    })
}

#[test]
fn an_agent_that_may_not_look_at_sockets_says_so_and_leaves_them() -> Result<()> {
    let needed = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
    let cases = [(needed | CapabilitySet::SYS_PTRACE, "CAP_SYS_ADMIN"), (needed, "CAP_SYS_PTRACE")];
    for (capabilities, named) in cases {
        idle(|scene| {
            scene.agent.keep_only(capabilities);
            scene.agent.resume()?;
            let web = at(WEB4)?;
            let sockets = open(scene, Via::UdpConnected, web)?;
            let agent = &scene.agent;
            agent.wait_for_log("are gone stay", FOLLOWS)?;
            ensure!(agent.log().contains(named), "{}", agent.log());
            scene.set_ready("b", false)?;
            scene.wait_for(Via::UdpConnected, web, &["a", "c", "d"])?;
            // At its end an agent waits until its last search for sockets is done.
            scene.agent.stop()?;
            for (pod, socket) in &sockets {
                expect_alive(scene, *socket, web, pod)?;
            }
            let log = scene.agent.log();
            let said = log.lines().filter(|line| line.contains("are gone stay")).count();
            ensure!(said == 1, "said {said} times:\n{log}");
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn check_says_whether_sockets_can_be_ended() -> Result<()> {
    play(|scene| {
        let cases = [
            (CapabilitySet::empty(), "ok", "can be ended"),
            (CapabilitySet::SYS_ADMIN, "limited", "CAP_SYS_ADMIN"),
            (CapabilitySet::SYS_ADMIN | CapabilitySet::SYS_PTRACE, "limited", "CAP_SYS_PTRACE"),
        ];
        let root = scene.cluster.nodes()[0].cgroup_path().to_str().context("a path of UTF-8")?;
        for (capabilities, status, sentence) in cases {
            let mut command = scene.binary.command(&["check", "--cgroup-root", root, "-o", "json"]);
            without(&mut command, capabilities);
            let report: Value = serde_json::from_slice(&command.output()?.stdout)?;
            let sockets = row(&report["findings"], "name", "sockets")?;
            let said = sockets["sentence"].as_str().unwrap_or_default();
            ensure!(sockets["status"] == status && said.contains(sentence), "{sockets}");
        }
        Ok(())
    })
}

//! The resolver in the agent, as clients in pods see it: names of headless Services by policy, everything
//! else byte for byte from the cluster DNS, and the cluster DNS itself when the agent is gone.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use hickory_server::proto::op::{Message, MessageType, OpCode, Query};
use hickory_server::proto::rr::{Name, RecordType};
use rustix::time::{ClockId, clock_gettime};
use topo_lb_tests::cluster_dns::{echoed, framed};
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::process::Running;
use topo_lb_tests::scene::{FOLLOWS, KEYS, Scene, ZONE, idle, put_endpoints};
use topo_lb_tests::traffic::{Failure, Socket, Via};
use topo_lb_tests::wait::until;
use topo_lb_tests::wiring::node4;

/// The ClusterIP of the cluster DNS.
const DNS4: &str = "10.96.0.10";
/// The port of its endpoint.
const SERVED: u16 = 1053;
/// The pod that is its endpoint.
const SERVER: &str = "c";
/// The programs read the time of the last tick of the kernel, at most 10 ms ago.
const TICK: Duration = Duration::from_millis(20);
/// The port of the resolver.
const RESOLVER: u16 = 10053;
const NAME: &str = "db.default.svc.cluster.local.";
const PORTS: [(&str, u16, &str); 2] = [("dns", 53, "UDP"), ("dns-tcp", 53, "TCP")];

fn dns() -> Result<SocketAddr> {
    Ok(SocketAddr::new(DNS4.parse()?, 53))
}

/// A cluster with DNS, a headless Service `db` on all pods, and an agent with a resolver.
fn play(body: impl FnOnce(&mut Scene<'_>) -> Result<()>) -> Result<()> {
    play_with_server(|scene, _server| body(scene))
}

/// Like [`play`], with the server that is the cluster DNS.
fn play_with_server(body: impl FnOnce(&mut Scene<'_>, Running) -> Result<()>) -> Result<()> {
    idle(|scene| {
        let server = scene.cluster.pod(SERVER)?.serve_dns(SERVED)?;
        let mut db = service("db", &[], &[("http", 9376, "TCP")], &[]);
        db["spec"]["clusterIP"] = "None".into();
        db["spec"]["clusterIPs"] = ["None"].as_slice().into();
        let cluster_dns = service("kube-dns", &[DNS4], &PORTS, &[]);
        let pod = scene.cluster.pod(SERVER)?;
        let serving = [endpoint(&pod.ipv4.to_string(), &pod.node, SERVER)];
        let ports = PORTS.map(|(name, _, protocol)| (name, SERVED, protocol));
        let dns_slice = slice("kube-dns", "IPv4", &ports, &serving);
        scene.change(|manifests| {
            for object in [db, cluster_dns, dns_slice] {
                manifests.put(object);
            }
            put_endpoints(manifests, scene.cluster, "db", &["a", "b", "c", "d"])?;
            manifests.annotate("db", "topo-lb.io/dns", Some("true"))?;
            manifests.annotate("db", KEYS, Some(ZONE))
        })?;
        scene.agent.set("--dns", "");
        scene.agent.set("--dns-service", "default/kube-dns");
        scene.agent.resume()?;
        scene.agent.wait_for_log("DNS is served", FOLLOWS)?;
        body(scene, server)
    })
}

fn query(id: u16, name: &str, kind: RecordType) -> Result<Vec<u8>> {
    let mut query = Message::new(id, MessageType::Query, OpCode::Query);
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(Name::from_ascii(name)?, kind));
    Ok(query.to_vec()?)
}

/// One query through a new socket; the answer without its length.
fn ask(scene: &mut Scene<'_>, via: Via, query: &[u8]) -> Result<Result<Vec<u8>, Failure>> {
    match scene.client.open(via, dns()?)? {
        Ok(socket) => ask_by(scene, via, socket, query),
        Err(failure) => Ok(Err(failure)),
    }
}

fn ask_by(
    scene: &mut Scene<'_>,
    via: Via,
    socket: Socket,
    query: &[u8],
) -> Result<Result<Vec<u8>, Failure>> {
    match via {
        Via::Http => {
            let answer = scene.client.exchange(socket, dns()?, &framed(query))?;
            Ok(answer.map(|answer| answer[2..].to_vec()))
        }
        _ => scene.client.exchange(socket, dns()?, query),
    }
}

/// The addresses of an answer; `None` if the cluster DNS of the lab gave it.
fn addresses(query: &[u8], answer: &[u8]) -> Result<Option<BTreeSet<IpAddr>>> {
    if answer == echoed(query) {
        return Ok(None);
    }
    let message = Message::from_vec(answer).context("no answer of either")?;
    Ok(Some(message.answers.iter().filter_map(|it| it.data.ip_addr()).collect()))
}

fn of(scene: &Scene<'_>, pods: &[&str], kind: RecordType) -> Result<BTreeSet<IpAddr>> {
    let address = |name: &&str| {
        let pod = scene.cluster.pod(name)?;
        Ok(if kind == RecordType::A { pod.ipv4.into() } else { pod.ipv6.into() })
    };
    pods.iter().map(address).collect()
}

/// Another node asks the resolver itself: no answer has come when a pod that asked later has its own.
fn stranger_is_not_heard(scene: &mut Scene<'_>) -> Result<()> {
    let query = query(11, NAME, RecordType::A)?;
    let resolver = SocketAddr::new(node4(1).into(), RESOLVER);
    for _ in 0..3 {
        let stranger = scene.cluster.node_netns("there")?.run(|| {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.send_to(&query, resolver)?;
            Ok(socket)
        })?;
        let socket = scene.client.open(Via::Udp, resolver)??;
        let answer = scene.client.exchange(socket, resolver, &query)??;
        ensure!(addresses(&query, &answer)?.is_some(), "a pod of the node is heard");
        stranger.set_nonblocking(true)?;
        let heard = stranger.recv(&mut [0; 512]);
        ensure!(heard.is_err(), "another node was answered");
    }
    Ok(())
}

const EVERY: [Via; 3] = [Via::Udp, Via::UdpConnected, Via::Http];

/// Waits until a name has these pods, by every kind of socket; `None`: until the cluster DNS answers.
fn wait_for(scene: &mut Scene<'_>, kind: RecordType, pods: Option<&[&str]>) -> Result<()> {
    let wanted = pods.map(|pods| of(scene, pods, kind)).transpose()?;
    let query = query(0x1234, NAME, kind)?;
    until(&format!("{kind} of {pods:?}"), FOLLOWS, || {
        for via in EVERY {
            let now = match ask(scene, via, &query)? {
                Ok(answer) => addresses(&query, &answer)?,
                Err(failure) => return Ok(Err(format!("{via:?}: {failure}"))),
            };
            if now != wanted {
                return Ok(Err(format!("{via:?}: {now:?}")));
            }
        }
        Ok(Ok(()))
    })
    .map(drop)
}

#[test]
fn a_headless_name_follows_its_policy_and_everything_else_is_as_the_cluster_dns_says() -> Result<()>
{
    play(|scene| {
        for kind in [RecordType::A, RecordType::AAAA] {
            wait_for(scene, kind, Some(&["a", "b"]))?;
        }
        scene.set_ready("a", false)?;
        scene.set_ready("b", false)?;
        wait_for(scene, RecordType::A, Some(&[]))?;
        scene.change(|manifests| manifests.annotate("db", KEYS, Some(&format!("{ZONE},*"))))?;
        wait_for(scene, RecordType::A, Some(&["c", "d"]))?;

        let mut others = vec![
            query(1, "pod-0.db.default.svc.cluster.local.", RecordType::A)?,
            query(2, NAME, RecordType::SRV)?,
            query(3, "example.com.", RecordType::A)?,
            // No DNS at all, and as large as a datagram of these devices can be.
            b"xyz no query".to_vec(),
            (0..1_400_u16).map(|byte| byte as u8).collect(),
        ];
        others.extend((0..64).map(|id: u16| [id.to_be_bytes().as_slice(), &[0; 10]].concat()));
        for via in EVERY {
            for query in &others {
                let answer = ask(scene, via, query)??;
                ensure!(answer == echoed(query), "{via:?}: {query:?} was answered {answer:?}");
            }
            // Through one socket ours and others, one after the other.
            let socket = scene.client.open(via, dns()?)??;
            let ours = query(9, NAME, RecordType::A)?;
            for _ in 0..3 {
                let answer = ask_by(scene, via, socket, &ours)??;
                ensure!(addresses(&ours, &answer)? == Some(of(scene, &["c", "d"], RecordType::A)?));
                let answer = ask_by(scene, via, socket, &others[0])??;
                ensure!(answer == echoed(&others[0]), "{via:?}");
            }
        }
        stranger_is_not_heard(scene)?;
        scene.change(|manifests| manifests.annotate("db", "topo-lb.io/dns", None))?;
        wait_for(scene, RecordType::A, None)
    })
}

#[test]
fn a_killed_or_hanging_agent_leaves_the_cluster_dns_within_a_second() -> Result<()> {
    play(|scene| {
        wait_for(scene, RecordType::A, Some(&["a", "b"]))?;
        let query = query(7, NAME, RecordType::A)?;
        for end in ["KILL", "STOP"] {
            // A socket of before keeps no way to the agent.
            let socket = scene.client.open(Via::Udp, dns()?)??;
            let answer = ask_by(scene, Via::Udp, socket, &query)??;
            ensure!(addresses(&query, &answer)?.is_some(), "the agent does not answer");
            let id = scene.agent.process_id()?.to_string();
            signal(end, &id)?;
            let sent = monotonic();
            // It ends what it has begun: the lease may be renewed once more.
            until("the lease to end", FOLLOWS, || {
                let lease = lease(scene)?;
                let now = monotonic();
                Ok(if now > lease + TICK {
                    Ok(())
                } else {
                    Err(format!("{lease:?}, and now is {now:?}"))
                })
            })?;
            let left = lease(scene)?.saturating_sub(sent);
            ensure!(left < Duration::from_secs(1), "{end}: leased for {left:?}");
            for via in EVERY {
                let answer = ask(scene, via, &query)?.with_context(|| format!("{end}: {via:?}"))?;
                ensure!(answer == echoed(&query), "{end}: {via:?}");
            }
            let kept = ask_by(scene, Via::Udp, socket, &query)?;
            ensure!(
                kept.context("a socket of before")? == echoed(&query),
                "{end}: it kept its way"
            );
            if end == "KILL" {
                scene.agent.kill();
                scene.agent.resume()?;
            } else {
                signal("CONT", &id)?;
            }
            wait_for(scene, RecordType::A, Some(&["a", "b"]))?;
        }
        // One that ends by itself leaves no gap.
        scene.agent.stop()?;
        for _ in 0..20 {
            ensure!(ask(scene, Via::UdpConnected, &query)?? == echoed(&query));
        }
        Ok(())
    })
}

/// How many queries the cluster DNS did not answer, as the agent counts them.
fn failed(scene: &Scene<'_>) -> Result<u64> {
    let metrics = scene.agent.get("/metrics")?.body;
    let start = "topo_lb_dns_queries_total{outcome=\"failed\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(start));
    Ok(count.with_context(|| metrics.clone())?.parse()?)
}

#[test]
fn a_cluster_dns_that_is_silent_or_gone_is_given_up_and_serves_when_it_is_back() -> Result<()> {
    /// The resolver waits 5 s for an answer over UDP, and 10 s over TCP.
    const GIVEN_UP: Duration = Duration::from_secs(20);
    const SOCKETS: u32 = 50;
    play_with_server(|scene, mut server| {
        let (ours, other) =
            (query(1, NAME, RecordType::A)?, query(2, "example.com.", RecordType::A)?);
        wait_for(scene, RecordType::A, Some(&["a", "b"]))?;
        for is_gone in [false, true] {
            let before = failed(scene)?;
            if is_gone {
                server.kill();
            } else {
                signal("STOP", &server.id().to_string())?;
            }
            // Two queries by each socket. A stream is closed, so its client knows.
            scene.client.scatter(dns()?, SOCKETS)?;
            let stream = ask(scene, Via::Http, &other)?;
            ensure!(stream.is_err(), "somebody has answered in place of the cluster DNS");
            for via in EVERY {
                let answer = ask(scene, via, &ours)?.with_context(|| format!("{via:?}"))?;
                ensure!(addresses(&ours, &answer)?.is_some(), "{via:?}: {answer:?}");
            }
            until("all queries to be given up", GIVEN_UP, || {
                let now = failed(scene)?;
                Ok(if now >= before + u64::from(2 * SOCKETS) { Ok(()) } else { Err(now) })
            })?;
            if is_gone {
                server = scene.cluster.pod(SERVER)?.serve_dns(SERVED)?;
            } else {
                signal("CONT", &server.id().to_string())?;
            }
            for via in EVERY {
                let answer = ask(scene, via, &other)?.with_context(|| format!("{via:?}"))?;
                ensure!(answer == echoed(&other), "{via:?}: {answer:?}");
            }
        }
        Ok(())
    })
}

/// Until when the kernel leads to the agent.
fn lease(scene: &Scene<'_>) -> Result<Duration> {
    let dump = scene.dump("lease")?;
    let end = dump[0]["formatted"]["value"].as_u64().with_context(|| dump.to_string())?;
    Ok(Duration::from_nanos(end))
}

fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn signal(name: &str, id: &str) -> Result<()> {
    let status = std::process::Command::new("kill").args(["-s", name, id]).status()?;
    ensure!(status.success(), "kill -s {name} {id}: {status}");
    Ok(())
}

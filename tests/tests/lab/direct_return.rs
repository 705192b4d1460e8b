//! Direct return with an agent on each node: clients outside, whose packets one node sends on to another.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topo_lb_core::cluster::Family;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::client::Client;
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::outside::{BALANCER, idle};
use topo_lb_tests::pod;
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;
use topo_lb_tests::router::{Speaker, announce};
use topo_lb_tests::scene::{ALL, FOLLOWS, HERE, Scene};
use topo_lb_tests::traffic::{Socket, Via};
use topo_lb_tests::wait::{patient, until};

/// The other nodes, and the addresses of all.
const OTHERS: [&str; 3] = ["beside", "there", "beyond"];
pub(crate) const NODES: [[&str; 2]; 4] = [
    ["172.30.0.2", "fd00:172::2"],
    ["172.30.0.3", "fd00:172::3"],
    ["172.30.0.4", "fd00:172::4"],
    ["172.30.0.5", "fd00:172::5"],
];
/// How long until all nodes are proved.
const PROVED: Duration = Duration::from_secs(10);
/// Connections that are open when a node goes.
const OPEN: usize = 200;

/// How clients dial the load balancer IPs.
fn ways() -> [(Via, SocketAddr); 4] {
    let [four, six] = BALANCER.map(|it| it.parse::<IpAddr>().expect("an address"));
    [
        (Via::Http, SocketAddr::new(four, 80)),
        (Via::UdpConnected, SocketAddr::new(four, 80)),
        (Via::Http, SocketAddr::new(six, 80)),
        (Via::UdpConnected, SocketAddr::new(six, 80)),
    ]
}

/// The scene with an agent on each node; each has proved the others. A client outside dials by the node of the first one.
pub(crate) fn play(
    body: impl FnOnce(&mut Scene<'_>, &mut Vec<Agent<'_>>, Client) -> Result<()>,
) -> Result<()> {
    play_with("auto", body)
}

/// Like [`play`], with this value of `--direct-return`.
pub(crate) fn play_with(
    direct_return: &str,
    body: impl FnOnce(&mut Scene<'_>, &mut Vec<Agent<'_>>, Client) -> Result<()>,
) -> Result<()> {
    requirements::command("nft", "nftables")?;
    idle(|scene| {
        let folder = scene.manifests.folder();
        let mut others = Vec::new();
        for node in OTHERS {
            others.push(Agent::prepare(&scene.binary, scene.cluster, node, folder)?);
        }
        for agent in others.iter_mut().chain([&mut scene.agent]) {
            for (flag, value) in [
                ("--kube-proxy-replacement", ""),
                ("--direct-return", direct_return),
                ("--max-connections", "16384"),
                ("--max-services", "512"),
                // Tables of four endpoints have 1,601 slots.
                ("--max-endpoints", "16384"),
                ("--max-flows", "16384"),
            ] {
                agent.set(flag, value);
            }
            agent.launch()?;
        }
        scene.agent.wait_until_ready()?;
        others.iter_mut().try_for_each(Agent::wait_until_ready)?;
        for agent in others.iter().chain([&scene.agent]).filter(|_| direct_return == "auto") {
            wait_for_proofs(agent)?;
        }
        let client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        body(scene, &mut others, client)
    })
}

/// Waits until an agent has proved all other nodes, by both versions of IP.
fn wait_for_proofs(agent: &Agent<'_>) -> Result<()> {
    let answer = agent.wait_for_answer("/peers", PROVED, |answer| {
        answer.body.matches("\"proved\"").count() == 2 * OTHERS.len()
    });
    answer.map(drop).with_context(|| format!("{}; the log:\n{}", agent.node(), agent.log()))
}

/// Has the router send what is for the load balancer IPs to this node.
fn lead_to(scene: &Scene<'_>, [four, six]: [&str; 2]) -> Result<()> {
    let [balancer4, balancer6] = BALANCER;
    scene.cluster.fabric().ip(&[
        format!("route replace {balancer4} via {four}"),
        format!("route replace {balancer6} via {six}"),
    ])
}

/// Packets of clients outside that an agent's node has sent on, and connections that it has translated.
fn counted(agent: &Agent<'_>) -> Result<(u64, u64)> {
    let listed = agent.list("hooks")?;
    let hooks = listed["hooks"]["each"].as_array().context("hooks")?;
    let sum = |outcome| hooks.iter().filter_map(|it| it["packets"][outcome].as_u64()).sum();
    Ok((sum("sent_on"), sum("opened")))
}

/// Adds a Service at port 81 of the load balancer IPs, with this port of these pods as its endpoints.
fn put(scene: &mut Scene<'_>, port: u16, pods: &[&str]) -> Result<()> {
    let mut other = service("other", &["10.96.1.50", "fd00:96::150"], &[("http", 81, "TCP")], &[]);
    other["spec"]["type"] = "LoadBalancer".into();
    other["status"] = json!({"loadBalancer": {"ingress": BALANCER.map(|ip| json!({"ip": ip}))}});
    scene.manifests.put(other);
    for family in Family::BOTH {
        let mut endpoints = Vec::new();
        for pod in pods {
            let pod = scene.cluster.pod(pod)?;
            let address: IpAddr = match family {
                Family::V4 => pod.ipv4.into(),
                Family::V6 => pod.ipv6.into(),
            };
            endpoints.push(endpoint(&address.to_string(), &pod.node, &pod.name));
        }
        let family: &str = family.into();
        scene.manifests.put(slice("other", family, &[("http", port, "TCP")], &endpoints));
    }
    scene.manifests.write()
}

#[test]
fn endpoints_of_other_nodes_see_the_client_and_answer_it_themselves() -> Result<()> {
    const PORT: u16 = 7_778;
    play(|scene, others, mut client| {
        for (via, to) in ways() {
            client.wait_for(via, to, &ALL, FOLLOWS)?;
            client.expect(via, to, &ALL)?;
        }
        put(scene, PORT, &["c"])?;
        let pod = scene.cluster.pod("c")?;
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
        let server = pod.netns().run(|| Ok(TcpListener::bind(any)?))?;
        let before = counted(&scene.agent)?;
        for address in BALANCER {
            let to = SocketAddr::new(address.parse()?, 81);
            let mut dialled = None;
            until("a connection", FOLLOWS, || {
                let limit = patient(Duration::from_secs(1));
                let dial = || Ok(TcpStream::connect_timeout(&to, limit));
                Ok(scene.cluster.fabric().run(dial)?.map(|stream| dialled = Some(stream)))
            })?;
            let mut stream = dialled.context("a connection")?;
            let (mut accepted, from) = server.accept()?;
            let own = stream.local_addr()?;
            let seen = SocketAddr::new(from.ip().to_canonical(), from.port());
            ensure!(seen == own, "the endpoint sees {seen}, and the client is {own}");
            // More than a device takes at once, each way.
            let payload = vec![b'x'; 300_000];
            let mut bytes = vec![0; payload.len()];
            let mut back = (accepted.try_clone()?, stream.try_clone()?);
            let ways = [(&mut stream, &mut accepted), (&mut back.0, &mut back.1)];
            for (writer, reader) in ways {
                thread::scope(|scope| {
                    let writing = scope.spawn(|| writer.write_all(&payload));
                    reader.set_read_timeout(Some(patient(Duration::from_secs(5))))?;
                    reader.read_exact(&mut bytes)?;
                    Ok::<_, anyhow::Error>(writing.join().expect("no panic")?)
                })?;
                ensure!(bytes == payload, "other bytes");
            }
        }
        let after = counted(&scene.agent)?;
        ensure!(after.0 > before.0 + 20, "{before:?}, then {after:?}");
        ensure!(after.1 == before.1, "a connection is translated here: {before:?}, then {after:?}");
        ensure!(others.iter().all(|it| counted(it).is_ok_and(|(sent_on, _)| sent_on == 0)));
        Ok(())
    })
}

/// Opens connections, and returns them by the pod that answers.
fn open(client: &mut Client, connections: usize) -> Result<Vec<(Socket, SocketAddr, String)>> {
    let all = (0..connections).map(|number| {
        let (via, to) = ways()[number % 4];
        let socket = client.open(via, to)??;
        let reply = client.ask(socket, Some(to))?.with_context(|| format!("{via:?} to {to}"))?;
        Ok((socket, to, reply.pod))
    });
    all.collect()
}

/// Checks that each connection goes on at its pod, but for those of a pod that is gone. Returns how many go on.
fn expect_all(
    client: &mut Client,
    all: &[(Socket, SocketAddr, String)],
    gone: Option<&str>,
) -> Result<usize> {
    let mut pods = BTreeMap::new();
    for (socket, to, pod) in all.iter().filter(|(.., pod)| gone != Some(pod)) {
        let reply = client.ask(*socket, Some(*to))?;
        let reply = reply.with_context(|| format!("{to} by {pod}; so far {pods:?}"))?;
        ensure!(reply.pod == *pod, "{to}: {}, and before {pod}", reply.pod);
        *pods.entry(pod.clone()).or_insert(0) += 1;
    }
    Ok(pods.values().sum())
}

#[test]
fn a_node_that_is_cut_off_takes_no_connection_of_others_along() -> Result<()> {
    play(|scene, _, mut client| {
        for (via, to) in ways() {
            client.wait_for(via, to, &ALL, FOLLOWS)?;
        }
        let all = open(&mut client, OPEN)?;
        let pods: BTreeSet<_> = all.iter().map(|(.., pod)| &**pod).collect();
        ensure!(pods == ALL.into(), "{pods:?}");
        // The router finds the node gone, and takes the next one.
        scene.cluster.fabric().ip(&["link set node1 down".to_owned()])?;
        lead_to(scene, NODES[1])?;
        let gone_on = expect_all(&mut client, &all, Some("a"))?;
        ensure!(gone_on > OPEN / 2, "{gone_on} of {OPEN}");
        // And another one, by which no connection was opened.
        lead_to(scene, NODES[2])?;
        expect_all(&mut client, &all, Some("a"))?;
        // The first one is back.
        scene.cluster.fabric().ip(&["link set node1 up".to_owned()])?;
        lead_to(scene, NODES[0])?;
        until(
            "the first node",
            FOLLOWS,
            || Ok(expect_all(&mut client, &all, Some("a")).map(drop)),
        )?;
        Ok(())
    })
}

/// Dials again and again until `work` is done. Returns how many connections were answered, and what became of others.
fn dial_during(
    scene: &Scene<'_>,
    to: SocketAddr,
    work: impl FnOnce() -> Result<()>,
) -> Result<(u32, Vec<String>)> {
    const LONG: Duration = Duration::from_secs(10);
    let done = AtomicBool::new(false);
    let dial = || {
        let (mut answered, mut others) = (0, Vec::new());
        while !done.load(Ordering::Relaxed) {
            // A SYN that reaches the dead node is sent again after 1, 2 and 4 s.
            match TcpStream::connect_timeout(&to, patient(LONG)) {
                Err(error) => others.push(format!("dialling: {error}")),
                Ok(stream) => match ask(&stream, LONG) {
                    Ok(_) => answered += 1,
                    Err(error) => others.push(format!("{error:#}")),
                },
            }
        }
        Ok((answered, others))
    };
    thread::scope(|scope| {
        let dialling = scope.spawn(|| scene.cluster.fabric().run(dial));
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let dialled = dialling.join().expect("no panic");
        worked.and(dialled)
    })
}

/// Asks a pod's server by HTTP for its name, and waits so long for the answer (see [`patient`]).
pub(crate) fn ask(mut stream: &TcpStream, limit: Duration) -> Result<String> {
    stream.set_read_timeout(Some(patient(limit)))?;
    stream.write_all(b"GET / HTTP/1.1\r\nHost: lab\r\n\r\n")?;
    let mut bytes = [0; 512];
    let read = stream.read(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes[..read]);
    let (_, name) = text.split_once("\r\n\r\n").context("no answer")?;
    Ok(name.to_owned())
}

/// Routers as in a rack: three nodes announce the address by BGP, and the fabric spreads flows over them by addresses and
/// ports. Each node that goes takes only its own endpoint's connections along.
fn rack(speaker: Speaker) -> Result<()> {
    const CONNECTIONS: usize = 300;
    /// How long until the fabric has or leaves a route.
    const ROUTES: Duration = Duration::from_secs(10);
    play(|scene, others, mut client| {
        let [four, _] = BALANCER;
        let to = SocketAddr::new(four.parse()?, 80);
        scene.cluster.fabric().set(&[("ipv4/fib_multipath_hash_policy", "1")])?;
        scene.cluster.fabric().ip(&[format!("route del {four}")])?;
        let announcing = [(HERE, NODES[0][0]), ("beside", NODES[1][0]), ("there", NODES[2][0])];
        let routers = announce(scene.cluster, four, &announcing, speaker)?;
        let ways_to = |wanted: usize| {
            until("routes", ROUTES, || {
                let routes = scene
                    .cluster
                    .fabric()
                    .run(|| printed(Command::new("ip").args(["-4", "route", "show", four])))?;
                let found = routes.matches("via").count();
                Ok(if found == wanted { Ok(()) } else { Err(routes) })
            })
        };
        ways_to(3)?;
        client.wait_for(Via::Http, to, &ALL, FOLLOWS)?;
        // Endpoints of nodes that live on: connections to them have no reason to fail, by whichever node they come.
        put(scene, pod::PORT, &["a", "d"])?;
        let living = SocketAddr::new(four.parse()?, 81);
        client.wait_for(Via::Http, living, &["a", "d"], FOLLOWS)?;
        let all: Result<Vec<_>> = (0..CONNECTIONS)
            .map(|_| {
                let socket = client.open(Via::Http, to)??;
                Ok((socket, to, client.ask(socket, None)??.pod))
            })
            .collect();
        let all = all?;
        let (answered, failed) = dial_during(scene, living, || {
            scene.cluster.fabric().ip(&["link set node3 down".to_owned()])?;
            ways_to(2)?;
            expect_all(&mut client, &all, Some("c"))?;
            scene.cluster.fabric().ip(&["link set node3 up".to_owned()])?;
            ways_to(3)?;
            expect_all(&mut client, &all, Some("c"))?;
            // An agent that is killed takes nothing along.
            others.iter_mut().for_each(Agent::kill);
            expect_all(&mut client, &all, Some("c"))?;
            scene.cluster.fabric().ip(&["link set node2 down".to_owned()])?;
            ways_to(2)?;
            let left: Vec<_> = all.iter().filter(|(.., pod)| pod != "c").cloned().collect();
            expect_all(&mut client, &left, Some("b"))?;
            Ok(())
        })?;
        println!("{answered} new connections beside them");
        ensure!(answered > 20 && failed.is_empty(), "{answered} new connections; {failed:?}");
        drop(routers);
        Ok(())
    })
}

#[test]
fn routers_of_bird_spread_flows_over_nodes_of_which_any_may_die() -> Result<()> {
    rack(Speaker::Bird)
}

#[test]
fn routers_of_frr_spread_flows_over_nodes_of_which_any_may_die() -> Result<()> {
    rack(Speaker::Frr)
}

#[test]
fn open_connections_stay_when_endpoints_come_and_go_and_while_no_agent_runs() -> Result<()> {
    play(|scene, others, mut client| {
        scene.set_endpoints("web", &["b", "c"])?;
        for (via, to) in ways() {
            client.wait_for(via, to, &["b", "c"], FOLLOWS)?;
        }
        let before = counted(&scene.agent)?;
        let all = open(&mut client, 40)?;
        let after = counted(&scene.agent)?;
        ensure!(after.0 > before.0 + 80 && after.1 == before.1, "{before:?}, then {after:?}");
        scene.set_endpoints("web", &ALL)?;
        for (via, to) in ways() {
            client.wait_for(via, to, &ALL, FOLLOWS)?;
        }
        expect_all(&mut client, &all, None)?;
        scene.agent.kill();
        others.iter_mut().for_each(Agent::kill);
        expect_all(&mut client, &all, None)?;
        for (via, to) in ways() {
            client.expect(via, to, &ALL)?;
        }
        Ok(())
    })
}

/// How packets get from the first node to an endpoint of another one.
#[derive(Clone, Copy, Debug)]
enum Way {
    SourceNat,
    DirectReturn,
}

/// Waits until all connections to the endpoint "c" take this way.
fn wait_for_way(scene: &Scene<'_>, client: &mut Client, way: Way, limit: Duration) -> Result<()> {
    let (via, to) = ways()[0];
    until(&format!("{way:?}"), limit, || {
        let before = counted(&scene.agent)?;
        client.expect(via, to, &["c"])?;
        let after = counted(&scene.agent)?;
        let is_so = match way {
            Way::SourceNat => after.0 == before.0 && after.1 >= before.1 + 100,
            Way::DirectReturn => after.0 >= before.0 + 100 && after.1 == before.1,
        };
        Ok(if is_so { Ok(()) } else { Err(format!("{before:?}, then {after:?}")) })
    })
    .map(drop)
}

#[test]
fn a_service_that_opts_out_and_a_node_without_direct_return_are_as_before() -> Result<()> {
    play(|scene, others, mut client| {
        scene.manifests.get("Service", "web")?["metadata"]["annotations"]["topo-lb.io/direct-return"] =
            "false".into();
        scene.set_endpoints("web", &["c"])?;
        let (via, to) = ways()[0];
        client.wait_for(via, to, &["c"], FOLLOWS)?;
        wait_for_way(scene, &mut client, Way::SourceNat, FOLLOWS)?;
        // Again with direct return, but the other node's agent stops it: it is unproved within half a minute.
        scene.manifests.get("Service", "web")?["metadata"]["annotations"] = json!({});
        scene.manifests.write()?;
        wait_for_way(scene, &mut client, Way::DirectReturn, FOLLOWS)?;
        let mut open = open(&mut client, 4)?;
        open.retain(|(_, to, _)| to.is_ipv4());
        let there = others.iter_mut().find(|it| it.node() == "there").context("an agent")?;
        there.stop()?;
        there.set("--direct-return", "off");
        there.resume()?;
        wait_for_way(scene, &mut client, Way::SourceNat, Duration::from_secs(40))?;
        expect_all(&mut client, &open, None).context("open connections go on when a proof ends")?;
        // The first node sends nothing on any more, and knows nothing of these connections.
        scene.agent.stop()?;
        scene.agent.set("--direct-return", "off");
        scene.agent.resume()?;
        let (socket, to, _) = open.iter().find(|(_, to, _)| *to == ways()[0].1).context("one")?;
        let asked = client.ask(*socket, Some(*to))?;
        ensure!(asked.is_err(), "it goes on without direct return: {asked:?}");
        Ok(())
    })
}

//! Direct return with an agent on each node: clients outside, whose packets one node sends on to another.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::client::Client;
use topo_lb_tests::direct_return::{NODES, Returns, counted, play, put};
use topo_lb_tests::node_deaths::{self, Deaths, Load};
use topo_lb_tests::outside::BALANCER;
use topo_lb_tests::router::Speaker;
use topo_lb_tests::scene::{ALL, FOLLOWS, Scene};
use topo_lb_tests::traffic::{Socket, Via};
use topo_lb_tests::wait::{patient, until};

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

/// Has the router send what is for the load balancer IPs to this node.
fn lead_to(scene: &Scene<'_>, [four, six]: [&str; 2]) -> Result<()> {
    let [balancer4, balancer6] = BALANCER;
    scene.cluster.fabric().ip(&[
        format!("route replace {balancer4} via {four}"),
        format!("route replace {balancer6} via {six}"),
    ])
}

#[test]
fn endpoints_of_other_nodes_see_the_client_and_answer_it_themselves() -> Result<()> {
    const PORT: u16 = 7_778;
    play(Returns::Directly, |scene, others, mut client| {
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
    play(Returns::Directly, |scene, _, mut client| {
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
        client.wait_for(Via::Http, ways()[0].1, &ALL, FOLLOWS)?;
        expect_all(&mut client, &all, Some("a"))?;
        Ok(())
    })
}

/// Each node that goes takes only its own endpoint's connections along.
fn rack(speaker: Speaker, count: usize) -> Result<()> {
    const LOAD: Load = Load { open: 300, per_second: 100 };
    let deaths = Deaths { count, every: Duration::ZERO };
    let outcome = node_deaths::run(LOAD, Returns::Directly, speaker, deaths)?;
    println!("{} new connections and {} questions beside them", outcome.answered, outcome.asked);
    // A SYN that a dead node gets is sent again after 1, 2 and 4 s.
    ensure!(outcome.slowest < Duration::from_secs(10), "{outcome:?}");
    ensure!(outcome.lost.is_empty() && outcome.failed.is_empty(), "{outcome:?}");
    // Of four endpoints three are asked while the other one is cut off, and all of them afterwards.
    let asked = (count * LOAD.open) as u64 * 3 / 2;
    ensure!(outcome.asked > asked && outcome.answered > 100, "{outcome:?}");
    Ok(())
}

#[test]
fn routers_of_bird_spread_flows_over_nodes_of_which_any_may_die() -> Result<()> {
    // With the second node its agent dies, too.
    rack(Speaker::Bird, 2)
}

#[test]
fn routers_of_frr_spread_flows_over_nodes_of_which_any_may_die() -> Result<()> {
    rack(Speaker::Frr, 1)
}

#[test]
fn without_direct_return_a_node_takes_the_connections_along_that_came_by_it() -> Result<()> {
    const LOAD: Load = Load { open: 300, per_second: 10 };
    let deaths = Deaths { count: 1, every: Duration::ZERO };
    let outcome = node_deaths::run(LOAD, Returns::BySource, Speaker::Bird, deaths)?;
    // A third came by the node that died, of which three quarters lead to endpoints of other nodes. And the fabric spreads
    // many others anew, each time that it has another number of ways.
    ensure!(outcome.lost.len() > 40, "{outcome:?}");
    Ok(())
}

#[test]
fn open_connections_stay_when_endpoints_come_and_go_and_while_no_agent_runs() -> Result<()> {
    play(Returns::Directly, |scene, others, mut client| {
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
    play(Returns::Directly, |scene, others, mut client| {
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

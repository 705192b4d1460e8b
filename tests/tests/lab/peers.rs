//! Direct return: agents prove nodes to each other (`--direct-return auto`), and what `peers` holds then.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_common::hop::{PROVED, Peer};
use topo_lb_common::members::node_tag;
use topo_lb_core::cluster::Family;
use topo_lb_core::peers::frame::{Envelope, client};
use topo_lb_core::peers::message::{Kind, Message};
use topo_lb_kernel::datapath::maps::peers::PeerMap;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::flood::{flood, send_each};
use topo_lb_tests::outside::{BALANCER, idle};
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{HERE, Scene};
use topo_lb_tests::wait::{patient, until_is};

/// The node of the second agent.
const BESIDE: &str = "beside";
/// How long a proof may take.
const SOON: Duration = Duration::from_secs(3);
/// How long until a node is unproved that does not answer: a round, and three misses.
const LATE: Duration = Duration::from_secs(20);

/// The Ethernet address of a node's uplink.
fn ethernet(node: u8) -> [u8; 6] {
    [2, 0x54, 0x4c, 1, node, 0]
}

/// The scene with a second agent; none runs yet.
fn play(body: impl FnOnce(&mut Scene<'_>, &mut Agent<'_>) -> Result<()>) -> Result<()> {
    requirements::command("nft", "nftables")?;
    idle(|scene| {
        let folder = scene.manifests.folder();
        let mut other = Agent::prepare(&scene.binary, scene.cluster, BESIDE, folder)?;
        for agent in [&mut scene.agent, &mut other] {
            for (flag, value) in [
                ("--kube-proxy-replacement", ""),
                ("--max-connections", "4096"),
                ("--max-services", "512"),
                ("--max-endpoints", "512"),
                ("--max-flows", "4096"),
                ("--direct-return", "auto"),
            ] {
                agent.set(flag, value);
            }
        }
        body(scene, &mut other)
    })
}

/// Like [`play`], with both agents ready.
fn both(body: impl FnOnce(&mut Scene<'_>, &mut Agent<'_>) -> Result<()>) -> Result<()> {
    play(|scene, other| {
        scene.agent.launch()?;
        other.resume()?;
        scene.agent.wait_until_ready()?;
        body(scene, other)
    })
}

/// What an agent says of a node, by IPv4 and IPv6: the state, and the reason.
fn said(body: &str, node: &str) -> Vec<(String, String)> {
    let all: Vec<Value> = serde_json::from_str(body).unwrap_or_default();
    let text = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
    let of_node = all.iter().filter(|it| it["node"] == node);
    of_node.map(|it| (text(it, "state"), text(it, "reason"))).collect()
}

/// Waits until an agent says this of a node by both versions of IP.
fn wait_for(
    agent: &Agent<'_>,
    node: &str,
    state: &str,
    reason: &str,
    limit: Duration,
) -> Result<()> {
    let is_so = |(its, why): &(String, String)| its == state && why.contains(reason);
    let answer = agent.wait_for_answer("/peers", limit, |answer| {
        let said = said(&answer.body, node);
        said.len() == 2 && said.iter().all(is_so)
    });
    answer.map(drop).with_context(|| format!("{node} {state} {reason}; the log:\n{}", agent.log()))
}

fn wait_for_proofs(scene: &Scene<'_>, other: &Agent<'_>, limit: Duration) -> Result<()> {
    wait_for(&scene.agent, BESIDE, "proved", "", limit)?;
    wait_for(other, HERE, "proved", "", limit)
}

/// What an agent's map holds.
fn map(agent: &Agent<'_>) -> Result<BTreeMap<Peer, u32>> {
    Ok(PeerMap::open(agent.pins())?.read()?.into_iter().collect())
}

/// Entries for a card, by both versions of IP.
fn entries(card: [u8; 6], node: &str, bits: u32) -> BTreeMap<Peer, u32> {
    let value = u32::from(node_tag(node.as_bytes())) | bits;
    let of = |version| (Peer { ethernet: card, version, reserved: 0 }, value);
    [of(4), of(6)].into()
}

fn expect_map(agent: &Agent<'_>, wanted: &BTreeMap<Peer, u32>, limit: Duration) -> Result<()> {
    let look = || Ok(format!("{:?}", map(agent)?));
    until_is("the map of peers", limit, look, |now| *now == format!("{wanted:?}")).map(drop)
}

#[test]
fn nodes_with_agents_prove_each_other_and_one_that_stops_is_unproved_and_nothing_stays()
-> Result<()> {
    play(|scene, other| {
        // The kernel has to ask for the addresses itself.
        for (node, neighbour) in [(HERE, 3), (BESIDE, 2)] {
            scene.cluster.ip_on(
                node,
                &[
                    format!("neigh del 172.30.0.{neighbour} dev eth0"),
                    format!("neigh del fd00:172::{neighbour} dev eth0"),
                ],
            )?;
        }
        other.resume()?;
        wait_for(other, HERE, "unproved", "no agent answers at 02:54:4c:01:01:00", SOON)?;
        scene.agent.resume()?;
        let begin = Instant::now();
        wait_for_proofs(scene, other, SOON)?;
        println!("proved {:?} after the agent was ready", begin.elapsed());
        wait_for(&scene.agent, "there", "unproved", "no agent answers", SOON)?;
        expect_map(&scene.agent, &entries(ethernet(2), BESIDE, PROVED), SOON)?;
        expect_map(other, &entries(ethernet(1), HERE, PROVED), SOON)?;
        let metrics = scene.agent.get("/metrics")?;
        let sample = |state| {
            metrics.sample(&format!(
                "topo_lb_direct_return_nodes{{family=\"IPv6\",state=\"{state}\"}}"
            ))
        };
        let counted = (sample("proved"), sample("unproved"));
        ensure!(counted == (Some(1.0), Some(2.0)), "{counted:?}");
        ensure!(scene.agent.log().matches("are sent on to node ").count() == 2, "not said once");

        let node = scene.cluster.node_netns(HERE)?;
        let listed = node.run(|| printed(&mut scene.agent.list_command("peers")))?;
        println!("{listed}");
        ensure!(listed.lines().any(|row| {
            let row: Vec<_> = row.split_whitespace().collect();
            row == [BESIDE, "IPv6", "proved", "02:54:4c:01:02:00", "-"]
        }));
        ensure!(listed.contains("no agent answers at 02:54:4c:01:04:00"));
        expect_explained(scene)?;
        // Without the agent's answer, the map alone.
        let rows = scene.agent.list("peers")?;
        let states: Vec<_> = rows["peers"].as_array().into_iter().flatten().collect();
        ensure!(states.len() == 2 && states.iter().all(|it| it["state"] == "proved"), "{rows}");

        // Its programs go on, but who would see that the network does not carry it any more?
        other.stop()?;
        wait_for(&scene.agent, BESIDE, "unproved", "no agent answers", LATE)?;
        expect_map(&scene.agent, &entries(ethernet(2), BESIDE, 0), SOON)?;
        expect_map(other, &entries(ethernet(1), HERE, PROVED), SOON)?;
        other.resume()?;
        wait_for_proofs(scene, other, SOON)?;

        other.stop()?;
        other.set("--direct-return", "off");
        other.resume()?;
        expect_map(other, &BTreeMap::new(), SOON)?;
        ensure!(other.get("/peers")?.body.trim() == "null", "an agent without direct return asks");
        wait_for(&scene.agent, BESIDE, "unproved", "no agent answers", LATE)
    })
}

/// Checks that the agent, and the command that asks it, explain which of the Service's nodes are proved.
fn expect_explained(scene: &Scene<'_>) -> Result<()> {
    let body = scene.agent.get("/explain?service=default/web")?.body;
    let report: Value = serde_json::from_str(&body)?;
    let ready = scene.agent.get("/readyz?verbose")?;
    let line = "[+] peers: packets of clients outside are sent on to 1 of 3 nodes by IPv4, to 1 of 3 nodes by IPv6; `topo-lb list";
    ensure!(ready.status == 200 && ready.body.contains(line), "{ready}");
    let nodes = &report["services"][0]["exposed"]["otherNodes"];
    let brief = |of: &Value| json!([of["nodes"], of["state"], of["cause"]]);
    let said: Vec<_> = nodes.as_array().into_iter().flatten().map(brief).collect();
    let wanted = [
        json!([["beside"], "proved", null]),
        json!([["beyond", "there"], "unproved", "no-answer"]),
    ];
    ensure!(said == wanted, "{body}");

    let mut explain = scene.binary.command(&["explain", "--node", HERE, "default/web:80"]);
    explain.arg("--agent").arg(format!("http://{}", Agent::address()?));
    explain.arg("--manifests").arg(scene.manifests.folder());
    let text = scene.cluster.node_netns(HERE)?.run(|| printed(&mut explain))?;
    println!("{text}");
    for line in [
        "  returns   directly: yes; connections to the node port get source NAT",
        "  to nodes  beside: sent on",
        "  to nodes  beyond, there: source NAT, as no agent answers at their next hops",
    ] {
        ensure!(text.lines().any(|it| it == line), "no line {line:?} in:\n{text}");
    }
    Ok(())
}

#[test]
fn a_restart_keeps_the_proofs() -> Result<()> {
    both(|scene, other| {
        wait_for_proofs(scene, other, SOON)?;
        scene.agent.kill();
        scene.agent.resume()?;
        for _ in 0..50 {
            let now = (map(&scene.agent)?, map(other)?);
            let wanted = (entries(ethernet(2), BESIDE, PROVED), entries(ethernet(1), HERE, PROVED));
            ensure!(now == wanted, "{now:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
        wait_for_proofs(scene, other, SOON)
    })
}

#[test]
fn a_network_that_drops_foreign_sources_proves_nothing() -> Result<()> {
    both(|scene, other| {
        wait_for_proofs(scene, other, SOON)?;
        let fabric = scene.cluster.fabric();
        // As clouds do: what a node sends has its own address.
        fabric.nft(
            "table bridge cloud { chain forward { type filter hook forward priority 0; \
               meta protocol ip ip saddr 192.0.2.0/24 drop; meta protocol ip6 ip6 saddr 2001:db8::1 drop; \
             }; }",
        )?;
        wait_for(&scene.agent, BESIDE, "unproved", "drops addresses that are not its own", LATE)?;
        wait_for(other, HERE, "unproved", "drops addresses that are not its own", LATE)?;
        expect_map(&scene.agent, &entries(ethernet(2), BESIDE, 0), SOON)?;
        fabric.nft("delete table bridge cloud")?;
        wait_for_proofs(scene, other, LATE)?;
        // A network that carries what the client sends, and not what it gets.
        let [four, six] = BALANCER;
        fabric.nft(&format!(
            "table bridge cloud {{ chain forward {{ type filter hook forward priority 0; \
               meta protocol ip ip saddr {four} drop; meta protocol ip6 ip6 saddr {six} drop; }}; }}"
        ))?;
        wait_for(&scene.agent, BESIDE, "unproved", "drops addresses that are not its own", LATE)
    })
}

#[test]
fn a_route_that_leads_elsewhere_or_nowhere_is_named() -> Result<()> {
    both(|scene, other| {
        wait_for_proofs(scene, other, SOON)?;
        let by = |way: [&str; 2]| {
            scene.cluster.ip_on(
                HERE,
                &[
                    format!("route replace 10.244.2.0/24 {}", way[0]),
                    format!("route replace fd00:244:2::/64 {}", way[1]),
                ],
            )
        };
        let wait = |reason| wait_for(&scene.agent, BESIDE, "unproved", reason, LATE);
        by(["dev pod2", "dev pod2"])?;
        wait("leaves by pod2")?;
        expect_map(&scene.agent, &entries(ethernet(2), BESIDE, 0), SOON)?;
        by(["via 172.30.0.4", "via fd00:172::4"])?;
        wait("no agent answers at 02:54:4c:01:03:00")?;
        by(["via 172.30.0.77", "via fd00:172::77"])?;
        wait("does not find the Ethernet address")?;
        by(["via 172.30.0.3", "via fd00:172::3"])?;
        wait_for_proofs(scene, other, LATE)
    })
}

#[test]
fn an_agent_that_may_open_no_packet_socket_says_so() -> Result<()> {
    play(|scene, _| {
        use rustix::thread::CapabilitySet as Set;
        let base = Set::BPF | Set::NET_ADMIN | Set::PERFMON;
        scene.agent.keep_only(base);
        scene.agent.resume()?;
        wait_for(&scene.agent, BESIDE, "unproved", "at eth0 (CAP_NET_RAW): Operation not", SOON)?;
        expect_map(&scene.agent, &BTreeMap::new(), SOON)?;
        scene.agent.stop()?;
        scene.agent.keep_only(base | Set::NET_RAW);
        scene.agent.resume()?;
        wait_for(&scene.agent, BESIDE, "unproved", "no agent answers", SOON)
    })
}

/// A frame of a stranger at the fabric's bridge, to the node [`HERE`].
fn forged(from: [u8; 6], family: Family, kind: Kind, cookie: u64) -> Result<Vec<u8>> {
    let balancer = BALANCER[usize::from(family == Family::V6)].parse()?;
    let (source, destination) = match kind {
        Kind::Hello => (client(family), balancer),
        Kind::Answer { .. } => (balancer, client(family)),
    };
    let message = Message { kind, node: BESIDE.into(), nonce: cookie, cookie };
    let payload = message.encode().context("a name")?;
    let envelope = Envelope { from, to: ethernet(1), source, destination };
    envelope.write(&payload).context("one family")
}

#[test]
fn a_stranger_gets_nothing_into_the_map_and_after_a_flood_all_is_proved() -> Result<()> {
    both(|scene, other| {
        wait_for_proofs(scene, other, SOON)?;
        let wanted = entries(ethernet(2), BESIDE, PROVED);
        let victim = [2, 9, 9, 9, 9, 9];
        let mut frames = Vec::new();
        for family in Family::BOTH {
            for cookie in 0..500 {
                let cookie = fastrand::u64(..).wrapping_mul(cookie);
                frames.push(forged(victim, family, Kind::Hello, cookie)?);
                frames.push(forged(victim, family, Kind::Answer { knows: true }, cookie)?);
                frames.push(forged(ethernet(2), family, Kind::Answer { knows: false }, cookie)?);
                let card = [2, 8, 8, 8, fastrand::u8(..), fastrand::u8(..)];
                frames.push(forged(card, family, Kind::Hello, cookie)?);
            }
        }
        // Of a card that has not sent too many.
        let mut garbage = forged([2, 7, 7, 7, 7, 7], Family::V4, Kind::Hello, 7)?;
        garbage[60] ^= 1;
        frames.insert(0, garbage);
        send_each(scene.cluster.fabric(), "node1", &frames[..400])?;
        let sent =
            flood(scene.cluster.fabric(), "node1", &frames, patient(Duration::from_secs(3)))?;
        println!("{sent} frames of a stranger");
        // Answers may get no room meanwhile, and three in a row end the proof: then connections get source NAT.
        let holds = map(&scene.agent)?;
        ensure!(holds.keys().eq(wanted.keys()), "{holds:?}");
        let metrics = scene.agent.get("/metrics")?;
        for reason in ["unasked", "flood", "garbage"] {
            let series = format!("topo_lb_direct_return_ignored_total{{reason=\"{reason}\"}}");
            let counted = metrics.sample(&series).unwrap_or_default();
            println!("{reason}: {counted}");
            ensure!(counted > 0.0, "no {reason}");
        }
        expect_map(&scene.agent, &wanted, LATE)?;
        wait_for_proofs(scene, other, LATE)
    })
}

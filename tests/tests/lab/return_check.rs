//! What `topo-lb check` finds of direct return, and what becomes of packets there.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary::json_of;
use topo_lb_tests::direct_return::{NODES, Returns, play};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::outside::BALANCER;
use topo_lb_tests::scene::{FOLLOWS, HERE, Scene};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{patient, until_is};

/// The node of the endpoint "c", to which the first one sends packets on.
const THERE: &str = "there";
/// A client to which only the default route leads.
const FAR: &str = "198.51.100.9";

/// The findings of direct return on a node: names, status, and sentences with their remedies.
fn checked(scene: &Scene<'_>, agent: &Agent<'_>, flags: &[&str]) -> Result<Vec<[String; 3]>> {
    let node = scene.cluster.node(agent.node())?;
    let mut check = scene.binary.command(&["check", "-o", "json", "--kube-proxy-replacement"]);
    check.args(flags).arg("--pin-dir").arg(agent.pins());
    check.arg("--cgroup-root").arg(node.cgroup_path());
    scene.cluster.beside(node, &mut check)?;
    let report = json_of(check)?;
    let all = report["findings"].as_array().context("findings")?.iter();
    let text = |of: &Value, field: &str| of[field].as_str().unwrap_or_default().to_owned();
    let all = all.map(|it| {
        let said = format!("{} → {}", text(it, "sentence"), text(it, "remedy"));
        [text(it, "name"), text(it, "status"), said]
    });
    Ok(all.filter(|[name, ..]| name == "direct return" || name == "return route").collect())
}

fn expect(found: &[[String; 3]], wanted: &[(&str, &str, &str)]) -> Result<()> {
    let is_so = |([name, status, said], wanted): (&[String; 3], &(&str, &str, &str))| {
        (&**name, &**status) == (wanted.0, wanted.1) && said.contains(wanted.2)
    };
    ensure!(
        found.len() == wanted.len() && found.iter().zip(wanted).all(is_so),
        "{found:?}, and wanted {wanted:?}"
    );
    Ok(())
}

/// Sets how the kernel checks sources of packets by the uplink: 0 not, 1 strictly, 2 loosely.
fn filter(node: &NetNs, value: &str) -> Result<()> {
    node.set(&[("ipv4/conf/eth0/rp_filter", value)])
}

#[test]
fn a_default_route_by_another_device_is_found_and_breaks_answers_whatever_the_filter() -> Result<()>
{
    // Without a name, a device by which a default route leaves is one of clients outside, too.
    const ON: [&str; 4] = ["--direct-return", "auto", "--external-devices", "eth0"];
    play(Returns::Directly, |scene, others, mut client| {
        scene.set_endpoints("web", &["c"])?;
        let to = SocketAddr::new(BALANCER[0].parse()?, 80);
        client.wait_for(Via::Http, to, &["c"], FOLLOWS)?;
        let there = others.iter_mut().find(|it| it.node() == THERE).context("an agent")?;
        there.stop()?;
        there.set("--external-devices", "eth0");
        there.resume()?;
        let there = &*there;
        let node = scene.cluster.node_netns(THERE)?;
        let (fabric, [here, _]) = (scene.cluster.fabric(), NODES[0]);
        fabric.ip(&[
            format!("address add {FAR}/32 dev lo"),
            format!("route replace {} via {here} src {FAR}", BALANCER[0]),
        ])?;
        let is_answered = || {
            let dial = || Ok(TcpStream::connect_timeout(&to, patient(Duration::from_millis(500))));
            Ok::<_, anyhow::Error>(fabric.run(dial)?.is_ok())
        };

        // As nodes are: strict, which harms nobody here.
        let healthy = [("direct return", "ok", "packets of clients outside are sent on by eth0")];
        filter(node, "1")?;
        expect(&checked(scene, there, &ON)?, &healthy)?;
        ensure!(is_answered()?, "with a strict filter, and the default route by the uplink");

        // Only clients to which another route leads are answered by the uplink.
        node.ip(&["route replace default dev pod2".to_owned()])?;
        for (value, words) in [
            (
                "1",
                "net.ipv4.conf.eth0.rp_filter or that of all is 1 → let routes to clients leave by eth0",
            ),
            ("2", "leads, by pod2, do not come from the load balancer IP"),
        ] {
            filter(node, value)?;
            expect(
                &checked(scene, there, &ON)?,
                &[healthy[0], ("return route", "limited", words)],
            )?;
            ensure!(!is_answered()?, "answered with rp_filter={value}");
        }
        filter(node, "1")?;
        node.ip(&[format!("route add {FAR}/32 via 172.30.0.254")])?;
        ensure!(is_answered()?, "a route to the client by the uplink");
        Ok(())
    })
}

#[test]
fn rules_for_forwarded_packets_are_named_and_keep_a_node_from_direct_return() -> Result<()> {
    const SAID: &str = "the chain fence of the nftables table wall is for them, too";
    /// How long until a node is unproved that does not answer: a round, and three misses.
    const LATE: Duration = Duration::from_secs(20);
    play(Returns::Directly, |scene, others, mut client| {
        scene.set_endpoints("web", &["c"])?;
        let to = SocketAddr::new(BALANCER[0].parse()?, 80);
        client.wait_for(Via::Http, to, &["c"], FOLLOWS)?;
        let socket = client.open(Via::Http, to)??;
        client.ask(socket, None)??;
        let off = [("direct return", "ok", "off; with --direct-return auto")];
        expect(&checked(scene, &scene.agent, &[])?, &off)?;

        let node = scene.cluster.node_netns(HERE)?;
        node.nft("table inet wall { chain fence { type filter hook forward priority 0; policy drop; }; }")?;
        for (flags, status, words) in [
            (&["--direct-return", "auto"][..], "limited", "this node takes no part"),
            (&[], "ok", "--direct-return auto would change nothing here"),
        ] {
            let found = checked(scene, &scene.agent, flags)?;
            expect(&found, &[("direct return", status, words)])?;
            expect(&found, &[("direct return", status, SAID)])?;
        }
        // The agents say the same, and what was sent on ends.
        let peers = |agent: &Agent<'_>, words: &str, count: usize, limit| {
            let said = || Ok(agent.get("/peers")?.body);
            until_is(words, limit, said, |body| body.matches(words).count() == count).map(drop)
        };
        peers(&scene.agent, SAID, 2, FOLLOWS * 2)?;
        ensure!(client.ask(socket, None)?.is_err(), "it is still sent on");
        scene.set_endpoints("web", &["a"])?;
        for other in &*others {
            peers(other, "no agent answers", 2, LATE)?;
        }
        node.nft("delete table inet wall")
    })
}

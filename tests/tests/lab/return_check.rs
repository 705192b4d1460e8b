//! What `topo-lb check` finds of direct return, and what becomes of packets there.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary::json_of;
use topo_lb_tests::direct_return::{NODES, Returns, counted, play};
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

/// Whether a connection of a client outside to the load balancer IP is answered.
fn is_answered(scene: &Scene<'_>) -> Result<bool> {
    let to = SocketAddr::new(BALANCER[0].parse()?, 80);
    let dial = || Ok(TcpStream::connect_timeout(&to, patient(Duration::from_millis(500))).is_ok());
    scene.cluster.fabric().run(dial)
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

        // As nodes are: strict, which harms nobody here.
        let healthy = [("direct return", "ok", "packets of clients outside are sent on by eth0")];
        filter(node, "1")?;
        expect(&checked(scene, there, &ON)?, &healthy)?;
        ensure!(is_answered(scene)?, "with a strict filter, and the default route by the uplink");

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
            ensure!(!is_answered(scene)?, "answered with rp_filter={value}");
        }
        filter(node, "1")?;
        node.ip(&[format!("route add {FAR}/32 via 172.30.0.254")])?;
        ensure!(is_answered(scene)?, "a route to the client by the uplink");
        Ok(())
    })
}

/// Waits until connections of a client outside are answered, or not.
fn wait_for_answers(scene: &Scene<'_>, are_answered: bool) -> Result<()> {
    let what = format!("answered: {are_answered}");
    until_is(&what, FOLLOWS, || is_answered(scene), |is| *is == are_answered).map(drop)
}

#[test]
fn rules_for_forwarded_packets_hold_at_the_endpoint_s_node_and_are_named_at_the_first() -> Result<()>
{
    const WALL: &str =
        "table inet wall { chain fence { type filter hook forward priority 0; policy drop; }; }";
    /// As of a network plugin.
    const PLUGIN: &str = "table ip plugin { chain postrouting { type nat hook postrouting priority 100; \
                          ip saddr 10.244.0.0/16 ip daddr != 10.244.0.0/16 masquerade; }; }";
    /// How long until what changes is noticed, and nodes are proved again.
    const LATE: Duration = Duration::from_secs(20);
    const ON: [&str; 2] = ["--direct-return", "auto"];
    play(Returns::Directly, |scene, others, mut client| {
        scene.set_endpoints("web", &["c"])?;
        let to = SocketAddr::new(BALANCER[0].parse()?, 80);
        client.wait_for(Via::Http, to, &["c"], FOLLOWS)?;
        let socket = client.open(Via::Http, to)??;
        client.ask(socket, None)??;
        let off = [("direct return", "ok", "off; with --direct-return auto")];
        expect(&checked(scene, &scene.agent, &[])?, &off)?;
        let on = ("direct return", "ok", "are sent on by eth0");
        expect(&checked(scene, &scene.agent, &ON)?, &[on])?;

        // Rules of the first node, of a plugin or of an administrator: the kernel gives other connections their source.
        let here = scene.cluster.node_netns(HERE)?;
        here.nft(PLUGIN)?;
        here.nft(WALL)?;
        let by_kernel =
            |agent: &Agent<'_>| agent.wait_for_log("get their source by the nftables", LATE);
        by_kernel(&scene.agent)?;
        let found = checked(scene, &scene.agent, &ON)?;
        expect(&found, &[on])?;
        ensure!(
            found.iter().any(|[.., said]| said.contains("none of this one, although the chain")),
            "{found:?}"
        );
        let (before, _) = counted(&scene.agent)?;
        client.ask(socket, None)?.context("what was open is sent on")?;
        client.expect(Via::Http, to, &["c"])?;
        let (after, _) = counted(&scene.agent)?;
        ensure!(after > before + 100, "{before} packets sent on, then {after}");

        // Those of the endpoint's node see the client, and its node is proved.
        let there = scene.cluster.node_netns(THERE)?;
        there.nft(WALL)?;
        let there_agent = others.iter().find(|it| it.node() == THERE).context("an agent")?;
        by_kernel(there_agent)?;
        wait_for_answers(scene, false)?;
        there.nft(
            "add rule inet wall fence ip saddr 172.30.0.254 accept; \
                   add rule inet wall fence ip daddr 172.30.0.254 accept",
        )?;
        wait_for_answers(scene, true)?;
        ensure!(counted(&scene.agent)?.0 > after, "not by the other node");

        // A rule of routing may lead elsewhere.
        here.ip(&["rule add from 198.51.100.77 table 77".to_owned()])?;
        let said = || Ok(scene.agent.get("/peers")?.body);
        let words = "may lead to other nodes in another way";
        until_is(words, LATE, said, |body| body.contains(words))?;
        let found = checked(scene, &scene.agent, &ON)?;
        expect(&found, &[("direct return", "limited", "this node takes no part")])?;
        ensure!(client.ask(socket, None)?.is_err(), "it is still sent on");
        here.ip(&["rule del from 198.51.100.77 table 77".to_owned()])?;
        until_is(
            "proved again",
            LATE,
            || Ok(scene.agent.get("/peers")?.body),
            |body| body.contains("\"proved\""),
        )?;
        here.nft("delete table inet wall; delete table ip plugin")?;
        there.nft("delete table inet wall")
    })
}

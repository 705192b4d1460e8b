//! Counters of connections by locality: `topo-lb list services`.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::binary;
use topo_lb_tests::scene::{EMPTY4, HERE, KEYS, Scene, WEB4, WEB6, ZONE, at, mapped, play};
use topo_lb_tests::traffic::{Tally, Via};

/// The row of a frontend in `list services`.
fn row(scene: &Scene<'_>, frontend: &str) -> Result<Value> {
    binary::row(&scene.agent.list("services")?["services"], "frontend", frontend).cloned()
}

/// The counters that follow from the answers of a (this node), b (this zone), c (this region), d.
fn localities(tallies: &[&Tally]) -> Value {
    let by = |pod| tallies.iter().filter_map(|tally| tally.replies.get(pod)).sum::<u32>();
    json!({"node": by("a"), "zone": by("b"), "region": by("c"), "elsewhere": by("d"), "refused": 0})
}

#[test]
fn connections_are_counted_by_locality_over_every_address_of_a_service_port() -> Result<()> {
    play(|scene| {
        let four = scene.client.call(Via::Http, at(WEB4)?, 200)?;
        let six = scene.client.call(Via::Http, at(WEB6)?, 200)?;
        let mapped = scene.client.call(Via::HttpMptcp, mapped(WEB4)?, 200)?;
        let wanted = localities(&[&four, &six, &mapped]);
        let row4 = row(scene, &format!("{WEB4}:80/TCP"))?;
        ensure!(row4["service"] == "default/web:http", "{row4}");
        ensure!(row4["connections"] == wanted, "{row4}, not {wanted}");
        let row6 = row(scene, &format!("[{WEB6}]:80/TCP"))?;
        ensure!(row6["connections"] == wanted, "{row6}, not {wanted}");
        // UDP is another Service port.
        let connected = scene.client.call(Via::UdpConnected, at(WEB4)?, 100)?;
        let unconnected = scene.client.call(Via::Udp, at(WEB6)?, 100)?;
        let udp = row(scene, &format!("{WEB4}:80/UDP"))?;
        let wanted = localities(&[&connected, &unconnected]);
        ensure!(udp["connections"] == wanted, "{udp}, not {wanted}");
        Ok(())
    })
}

#[test]
fn a_flow_of_datagrams_counts_once_and_every_refusal_counts() -> Result<()> {
    play(|scene| {
        let to = at(WEB4)?;
        let socket = scene.client.open(Via::Udp, to)?.expect("a socket is always to be had");
        let mut pods = Tally::default();
        for _ in 0..20 {
            let reply = scene.client.ask(socket, Some(to))?.expect("endpoints serve");
            pods.replies.insert(reply.pod, 1);
        }
        let flow = row(scene, &format!("{WEB4}:80/UDP"))?;
        ensure!(flow["connections"] == localities(&[&pods]), "{flow}");

        scene.client.call(Via::Http, at(EMPTY4)?, 30)?;
        let refused = row(scene, &format!("{EMPTY4}:80/TCP"))?;
        ensure!(refused["verdict"] == "refuse", "{refused}");
        let wanted = json!({"node": 0, "zone": 0, "region": 0, "elsewhere": 0, "refused": 30});
        ensure!(refused["connections"] == wanted, "{refused}");
        Ok(())
    })
}

#[test]
fn tier_and_endpoints_are_those_that_explain_names() -> Result<()> {
    play(|scene| {
        let keys = format!("example.com/nobody,{ZONE}");
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(&keys)))?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
        let row = row(scene, &format!("{WEB4}:80/TCP"))?;
        ensure!(row["tier"] == 1 && row["endpoints"] == 2, "{row}");
        let listed = scene.agent.list("endpoints")?;
        let endpoints = listed["endpoints"].as_array().context("list endpoints has endpoints")?;
        let of_web: Vec<_> = endpoints
            .iter()
            .filter(|row| row["frontend"] == format!("{WEB4}:80/TCP"))
            .map(|row| (row["endpoint"].as_str(), row["locality"].as_str()))
            .collect();
        let a = scene.cluster.pod("a")?.address4().to_string();
        let b = scene.cluster.pod("b")?.address4().to_string();
        let wanted = [(Some(a.as_str()), Some("node")), (Some(b.as_str()), Some("zone"))];
        ensure!(of_web == wanted, "{of_web:?}, not {wanted:?}");
        Ok(())
    })
}

/// The maps have what the kernel counts, and the agent's metrics are read from them.
#[test]
fn top_shows_what_has_traffic_from_the_maps_and_from_an_agent_alike() -> Result<()> {
    play(|scene| {
        let keys = format!("example.com/nobody,{ZONE}");
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(&keys)))?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
        let (pins, agent) =
            (scene.agent.pins().to_owned(), format!("http://{}", Agent::address()?));
        let sources =
            [["--pin-dir".as_ref(), pins.as_os_str()], ["--agent".as_ref(), agent.as_ref()]];
        for source in sources {
            let mut top = scene.binary.command(&["top", "--once", "-o", "json", "--interval", "1"]);
            top.args(source);
            let node = scene.cluster.node_netns(HERE)?;
            let look = || node.run(|| binary::json_of(top));
            let (_, looked) = scene.client.call_during(Via::Http, at(WEB4)?, look)?;
            let web = binary::row(&looked["services"], "service", "default/web")?;
            let went = web["connections"].as_array().context("rates by locality")?;
            let went: Vec<_> = went.iter().filter_map(Value::as_f64).collect();
            // Endpoint a is on this node, b in its zone, and the policy allows no others.
            ensure!(went[0] > 0.0 && went[1] > 0.0 && went[2..] == [0.0, 0.0], "{source:?}: {web}");
            // Nobody has the first key's label.
            let tiers = web["tiers"].as_object().context("rates by tier")?;
            ensure!(tiers.keys().eq(["1"]), "{source:?}: {web}");
            let of = |what| tiers["1"][what].as_f64();
            ensure!(of("ended") > Some(0.0) && of("failed") == Some(0.0), "{source:?}: {web}");
        }
        let mut top = scene.binary.command(&["top", "--once", "--agent", "http://127.0.0.1:1"]);
        let output = top.output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(!output.status.success() && said.contains("no node answers"), "{said}");
        Ok(())
    })
}

//! Changes of the cluster reach the kernel, and break no connection.

use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use serde_json::{Value, json};
use topo_lb_fake_api::{CLUSTER_POLICIES, FakeApi};
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::scene::{
    ALL, FOLLOWS, HERE, KEYS, NOBODY4, Scene, WEB4, WEB6, ZONE, at, idle, play,
};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until;

#[test]
fn endpoints_that_come_and_go_are_followed() -> Result<()> {
    play(|scene| {
        for (via, to) in [(Via::Http, at(WEB4)?), (Via::Http, at(WEB6)?), (Via::Udp, at(WEB4)?)] {
            for pods in [&["c"][..], &["b", "c"], &[], &ALL] {
                scene.set_endpoints("web", pods)?;
                scene.wait_for(via, to, pods)?;
                scene.expect(via, to, pods)?;
            }
        }
        Ok(())
    })
}

#[test]
fn services_that_come_and_go_are_followed() -> Result<()> {
    play(|scene| {
        let to = at(NOBODY4)?;
        scene.expect(Via::Http, to, &["untouched"])?;
        scene.put(service("new", &[NOBODY4], &[("http", 80, "TCP")], &[]))?;
        scene.wait_for(Via::Http, to, &[])?;
        scene.set_endpoints("new", &["b"])?;
        scene.wait_for(Via::Http, to, &["b"])?;
        scene.remove("Service", "new")?;
        scene.wait_for(Via::Http, to, &["untouched"])?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)
    })
}

#[test]
fn open_connections_go_on_whatever_the_policy_says_later() -> Result<()> {
    play(|scene| {
        let mut open = Vec::new();
        for via in [Via::Http, Via::UdpConnected] {
            for to in [at(WEB4)?, at(WEB6)?] {
                let socket = scene.client.open(via, to)??;
                let reply = scene.client.ask(socket, None)??;
                open.push((via, socket, reply));
            }
        }
        scene.change(|manifests| manifests.annotate("web", KEYS, Some(ZONE)))?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
        for (_, socket, reply) in &open {
            let now = scene.client.ask(*socket, None)?;
            ensure!(now.as_ref() == Ok(reply), "an open connection has moved: {now:?}");
        }
        // The agent ends UDP sockets to a gone endpoint; see the suite `sockets`.
        scene.set_endpoints("web", &[])?;
        scene.wait_for(Via::Http, at(WEB4)?, &[])?;
        for (_, socket, reply) in open.iter().filter(|(via, _, _)| *via == Via::Http) {
            let now = scene.client.ask(*socket, None)?;
            ensure!(now.as_ref() == Ok(reply), "an open connection has moved: {now:?}");
        }
        Ok(())
    })
}

/// How many plans the agent has carried out.
fn plans(scene: &Scene<'_>) -> Result<f64> {
    let plans = "topo_lb_programming_duration_seconds_count";
    scene.agent.get("/metrics")?.sample(plans).context("no count of plans")
}

#[test]
fn no_connection_fails_while_endpoints_come_and_go() -> Result<()> {
    play(|scene| {
        // Ports of one pod make a Service with many endpoints, which do not fit inline.
        let servers: Result<Vec<_>> =
            (9400..9412).map(|port| scene.cluster.pod("a")?.serve_as("a", port)).collect();
        let servers = servers?;
        let address = scene.cluster.pod("a")?.ipv4.to_string();
        let large = |count: u16| -> Vec<Value> {
            (9400..9400 + count)
                .map(|port| {
                    let ports = [("http", port, "TCP"), ("udp", port, "UDP")];
                    let mut slice = slice("web", "IPv4", &ports, &[endpoint(&address, HERE, "a")]);
                    slice["metadata"]["name"] = json!(format!("web-{port}"));
                    slice
                })
                .collect()
        };
        let mut caller = scene.cluster.pod("client")?.client()?;
        let (tally, ()) = caller.call_during(Via::Http, at(WEB4)?, || {
            // Between few and many endpoints, through the slots, many times.
            for size in [12, 3, 9, 0].into_iter().cycle().take(40) {
                for slice in large(12) {
                    let name = slice["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    scene.manifests.remove("EndpointSlice", &name);
                }
                for slice in large(size) {
                    scene.manifests.put(slice);
                }
                let before = plans(scene)?;
                scene.manifests.write()?;
                until("the change in the maps", FOLLOWS, || {
                    Ok(if plans(scene)? > before { Ok(()) } else { Err("no plan was carried out") })
                })?;
            }
            Ok(())
        })?;
        ensure!(tally.failures.is_empty() && tally.answered() > 100, "{tally}");
        drop(servers);
        Ok(())
    })
}

/// Starts the agent with an API server that has the objects of the manifests.
fn start_by_api(scene: &mut Scene<'_>) -> Result<FakeApi> {
    let netns = scene.cluster.node_netns(HERE)?;
    let listener = netns.run(|| TcpListener::bind("127.0.0.1:0").context("cannot listen"))?;
    let server = FakeApi::start(listener, &topo_lb_fake_api::ALL)?;
    let mut list: Value = serde_json::from_str(&fs::read_to_string(scene.manifests.file())?)?;
    server.fill_all(list["items"].as_array_mut().context("a list has items")?.drain(..));
    scene.agent.unset("--manifests");
    scene.agent.set("--api-server", server.url());
    scene.agent.resume()?;
    Ok(server)
}

fn policy_for_all(name: &str, precedence: i32, keys: &[&str]) -> Value {
    json!({
        "apiVersion": "topo-lb.io/v1alpha1", "kind": "ClusterTopologyPolicy",
        "metadata": {"name": name}, "spec": {"precedence": precedence, "topologyKeys": keys},
    })
}

#[test]
fn policies_that_flip_a_hundred_times_a_second_fail_no_connection_and_the_last_one_holds()
-> Result<()> {
    idle(|scene| {
        let server = start_by_api(scene)?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)?;
        let lines = scene.agent.log().lines().count();
        let mut caller = scene.cluster.pod("client")?.client()?;
        let flips: [(&str, i32, &[&str]); 6] = [
            ("one", 0, &["*"]),
            ("one", 0, &["kubernetes.io/hostname"]),
            // The other one becomes stronger, weaker, and broken.
            ("other", 1, &["*"]),
            ("other", -1, &["*"]),
            ("other", 1, &["no label", "*"]),
            ("one", 0, &[ZONE]),
        ];
        let (tally, ()) = caller.call_during(Via::Http, at(WEB4)?, || {
            for (name, precedence, keys) in flips.into_iter().cycle().take(300) {
                let policy = policy_for_all(name, precedence, keys);
                server.change(CLUSTER_POLICIES, "MODIFIED", policy);
                thread::sleep(Duration::from_millis(10));
            }
            Ok(())
        })?;
        ensure!(tally.failures.is_empty() && tally.answered() > 100, "{tally}");
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
        scene.wait_for(Via::Http, at(WEB6)?, &["a", "b"])?;
        let log = scene.agent.log();
        let said = log.lines().count() - lines;
        ensure!(said < 30, "300 changes of policies have {said} lines in the log:\n{log}");
        Ok(())
    })
}

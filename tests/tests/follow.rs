//! Changes of the cluster reach the kernel, and break no connection.

use std::fs;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_tests::manifest::{endpoint, service, slice};
use topo_lb_tests::scene::{ALL, ECHO4, HERE, KEYS, NOBODY4, WEB4, WEB6, ZONE, at, play};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{PATIENCE, until_is};

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
            for size in [0, 12, 3, 9].into_iter().cycle().take(40) {
                for slice in large(12) {
                    let name = slice["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                    scene.manifests.remove("EndpointSlice", &name);
                }
                for slice in large(size) {
                    scene.manifests.put(slice);
                }
                scene.manifests.write()?;
                // Longer than the agent collects changes, so that it follows most of them.
                thread::sleep(std::time::Duration::from_millis(60));
            }
            Ok(())
        })?;
        ensure!(tally.failures.is_empty() && tally.answered() > 100, "{tally}");
        let plans = "topo_lb_programming_duration_seconds_count";
        let plans = scene.agent.get("/metrics")?.sample(plans).context("no count of plans")?;
        ensure!(plans >= 20.0, "only {plans} plans for 40 changes");
        drop(servers);
        Ok(())
    })
}

#[test]
fn a_broken_annotation_is_ignored_and_affects_no_other_service() -> Result<()> {
    play(|scene| {
        let broken =
            ["*,topology.kubernetes.io/zone", "a b", "x,x", ",", "topology.kubernetes.io/"];
        scene.put(service("zonal", &[NOBODY4], &[("http", 80, "TCP")], &[(KEYS, ZONE)]))?;
        scene.set_endpoints("zonal", &ALL)?;
        scene.wait_for(Via::Http, at(NOBODY4)?, &["a", "b"])?;
        for annotation in broken {
            scene.change(|manifests| manifests.annotate("web", KEYS, Some(ZONE)))?;
            scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
            scene.change(|manifests| manifests.annotate("web", KEYS, Some(annotation)))?;
            scene
                .wait_for(Via::Http, at(WEB4)?, &ALL)
                .with_context(|| format!("with the annotation {annotation:?}"))?;
            scene.expect(Via::Http, at(NOBODY4)?, &["a", "b"])?;
            let row = scene.explained("web")?;
            let error = row["policy"]["error"].as_str().unwrap_or_default();
            ensure!(!error.is_empty(), "no rule is named for {annotation:?}: {row}");
        }
        Ok(())
    })
}

#[test]
fn half_written_manifests_keep_the_last_good_state_serving() -> Result<()> {
    play(|scene| {
        scene.set_endpoints("web", &["b"])?;
        scene.wait_for(Via::Http, at(WEB4)?, &["b"])?;
        let whole = fs::read_to_string(scene.manifests.file())?;
        scene.manifests.replace(&whole[..whole.len() / 2])?;
        scene.agent.wait_for_log("cluster.json", PATIENCE)?;
        scene.expect(Via::Http, at(WEB4)?, &["b"])?;
        scene.expect(Via::Udp, at(ECHO4)?, &ALL)?;
        // An empty file is not a cluster either.
        scene.manifests.replace("")?;
        scene.manifests.replace("not: [a, list")?;
        scene.agent.wait_for_log("expected ident", PATIENCE)?;
        scene.expect(Via::Http, at(WEB4)?, &["b"])?;
        // The agent follows the file again once it is valid.
        scene.set_endpoints("web", &["c"])?;
        scene.wait_for(Via::Http, at(WEB4)?, &["c"])?;
        Ok(())
    })
}

#[test]
fn an_object_that_is_wrong_leaves_every_other_alone() -> Result<()> {
    play(|scene| {
        let mut wrong = service("wrong", &[NOBODY4], &[("http", 80, "TCP")], &[]);
        wrong["spec"]["ports"][0]["port"] = json!("eighty");
        scene.put(wrong)?;
        scene.set_endpoints("web", &["d"])?;
        // Whether the agent rejects the file or only the object, the log names the field.
        let is_named = |log: &String| log.contains("port") && log.contains("wrong");
        until_is("the wrong field in the log", PATIENCE, || Ok(scene.agent.log()), is_named)?;
        scene.expect(Via::Udp, at(ECHO4)?, &ALL)?;
        scene.remove("Service", "wrong")?;
        scene.wait_for(Via::Http, at(WEB4)?, &["d"])?;
        Ok(())
    })
}

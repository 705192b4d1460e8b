//! The agent's HTTP interface: metrics that follow real connections, readiness, explanations.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::crowd::{self, Plan};
use topo_lb_tests::http::{self, Answer};
use topo_lb_tests::scene::{ALL, EMPTY4, FOLLOWS, HERE, KEYS, Scene, WEB4, at, idle, play};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{PATIENCE, until, until_is};

fn metrics(agent: &Agent<'_>) -> Result<Answer> {
    let answer = agent.get("/metrics")?;
    ensure!(answer.status == 200, "{answer}");
    ensure!(answer.body.ends_with("# EOF\n"), "it has no end: {answer}");
    Ok(answer)
}

const WEB: &str = r#"namespace="default",service="web",port="http""#;

#[test]
fn connections_and_refusals_are_counted_where_they_go() -> Result<()> {
    play(|scene| {
        let before = metrics(&scene.agent)?;
        ensure!(!before.body.contains(WEB), "no client has connected yet: {before}");
        scene.client.call(Via::Http, at(WEB4)?, 100)?;
        scene.client.call(Via::Http, at(EMPTY4)?, 30)?;
        let text = metrics(&scene.agent)?;
        let total: f64 = ["node", "zone", "region", "elsewhere"]
            .iter()
            .filter_map(|place| {
                let series = format!("topo_lb_connections_total{{{WEB},locality=\"{place}\"}}");
                text.sample(&series)
            })
            .sum();
        ensure!(total == 100.0, "{total} connections: {text}");
        let refused = |service: &str, reason: &str| {
            format!(
                "topo_lb_refused_connections_total{{namespace=\"default\",service=\"{service}\",\
                 port=\"http\",reason=\"{reason}\"}}"
            )
        };
        ensure!(text.sample(&refused("empty", "no-endpoints")) == Some(30.0), "{text}");

        // Another reason has another series.
        scene.change(|manifests| manifests.annotate("web", KEYS, Some("example.com/nobody")))?;
        scene.wait_for(Via::Http, at(WEB4)?, &[])?;
        scene.client.call(Via::Http, at(WEB4)?, 30)?;
        let text = metrics(&scene.agent)?;
        let by_policy = text.sample(&refused("web", "topology-policy"));
        ensure!(by_policy.is_some_and(|times| times >= 30.0), "{by_policy:?}: {text}");
        let refusing = "topo_lb_refusing_service_ports{reason=\"topology-policy\"}";
        // Two: the Service ports http and udp.
        ensure!(text.sample(refusing) == Some(2.0), "{text}");
        Ok(())
    })
}

#[test]
fn service_ports_without_series_of_their_own_share_one_since_the_start() -> Result<()> {
    play(|scene| {
        scene.client.call(Via::Http, at(WEB4)?, 100)?;
        scene.client.call(Via::Http, at(EMPTY4)?, 30)?;
        scene.agent.stop()?;
        scene.agent.set("--metrics-services", "1");
        scene.agent.resume()?;
        scene.client.call(Via::Http, at(EMPTY4)?, 7)?;
        let text = metrics(&scene.agent)?;
        let is_own = text.body.contains("service=\"empty\"");
        ensure!(text.body.contains(WEB) && !is_own, "{text}");
        let others = "topo_lb_refused_connections_total{namespace=\"(others)\",\
                      service=\"(others)\",port=\"(others)\",reason=\"no-endpoints\"}";
        ensure!(text.sample(others) == Some(7.0), "{text}");
        Ok(())
    })
}

#[test]
fn changes_are_timed_from_their_arrival_to_the_map() -> Result<()> {
    play(|scene| {
        let timed = "topo_lb_programming_duration_seconds_count";
        let text = metrics(&scene.agent)?;
        ensure!(text.sample(timed) == Some(0.0), "the first listing is not timed: {text}");
        scene.set_endpoints("web", &["a", "b"])?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
        let text = metrics(&scene.agent)?;
        ensure!(text.sample(timed).is_some_and(|times| times >= 1.0), "{text}");
        let sum = text.sample("topo_lb_programming_duration_seconds_sum");
        ensure!(sum.is_some_and(|sum| sum > 0.0 && sum < 5.0), "{sum:?}");
        let used = text.sample("topo_lb_map_used_entries{map=\"services4\"}");
        ensure!(used == Some(5.0), "frontends of web, echo and empty: {used:?}");
        let capacity = text.sample("topo_lb_map_capacity_entries{map=\"services4\"}");
        ensure!(capacity == Some(512.0), "{capacity:?}");
        Ok(())
    })
}

#[test]
fn an_agent_is_ready_when_its_hooks_are_proven_and_its_state_is_synced() -> Result<()> {
    play(|scene| {
        scene.agent.wait_for_answer("/readyz", FOLLOWS, |answer| answer.status == 200)?;
        let verbose = scene.agent.get("/readyz?verbose")?;
        for wanted in ["[+] hooks: a self-probe", "[+] synced: ", "[+] programmed: ", "[+] fresh: "]
        {
            ensure!(verbose.body.contains(wanted), "{verbose}");
        }
        for alive in ["/livez", "/healthz"] {
            let answer = scene.agent.get(alive)?;
            ensure!(answer.status == 200 && answer.body == "ok\n", "{answer}");
        }
        let state: Value = serde_json::from_str(&scene.agent.get("/state")?.body)?;
        ensure!(state["ready"] == true && state["services"] == 3, "{state}");
        ensure!(state["node"] == HERE && state["stateAgeSeconds"].is_null(), "{state}");
        Ok(())
    })
}

#[test]
fn explanations_are_those_of_the_command() -> Result<()> {
    play(|scene| {
        let wanted = scene.binary.explain(scene.manifests.folder(), HERE)?;
        let all: Value = serde_json::from_str(&scene.agent.get("/explain")?.body)?;
        ensure!(all == wanted, "{all}\nis not\n{wanted}");
        let one = scene.agent.get("/explain?service=default/echo")?;
        let one: Value = serde_json::from_str(&one.body)?;
        let services = wanted["services"].as_array().context("services")?;
        let echo: Vec<_> = services.iter().filter(|service| service["name"] == "echo").collect();
        ensure!(one["services"].as_array().context("services")?.iter().eq(echo), "{one}");
        let wrong = scene.agent.get("/explain?service=echo")?;
        ensure!(wrong.status == 400 && wrong.body.contains("NAMESPACE/NAME"), "{wrong}");
        Ok(())
    })
}

#[test]
fn any_free_port_is_logged_and_off_is_nowhere() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--listen", "127.0.0.1:0");
        scene.agent.resume()?;
        let log = scene.agent.log();
        let (_, rest) = log.split_once("listening on http://").context("a bound address")?;
        let end = rest.find('"').context("the end of a message")?;
        let answer = http::get(scene.cluster.node_netns(HERE)?, rest[..end].parse()?, "/livez")?;
        ensure!(answer.status == 200, "{answer}");
        scene.agent.stop()?;
        scene.agent.set("--listen", "off");
        scene.agent.resume()?;
        ensure!(!scene.agent.log().contains("listening"), "{}", scene.agent.log());
        ensure!(scene.agent.get("/livez").is_err(), "something listens");
        Ok(())
    })
}

/// Starts the agent with a given listen address, and returns the address.
fn listening(scene: &mut Scene<'_>) -> Result<SocketAddr> {
    let address = SocketAddr::from(([127, 0, 0, 1], 8600));
    scene.agent.set("--listen", address.to_string());
    scene.agent.resume()?;
    Ok(address)
}

#[test]
fn two_thousand_silent_connections_keep_no_client_out() -> Result<()> {
    idle(|scene| {
        let address = listening(scene)?;
        let netns = scene.cluster.node_netns(HERE)?;
        let ready = || http::get(netns, address, "/readyz");
        until_is("readiness", FOLLOWS, ready, |answer| answer.status == 200)?;
        // The bench measures how fast the agent answers: `probe_ms` and `scrape_ms`.
        // More than the agent keeps open: 2,048, or an eighth of its descriptors.
        let plan = Plan { addresses: 60, each: 40 };
        crowd::around(netns, address, plan, |counts| {
            // The kernel's queue has room for all, even if the agent accepts none.
            let all = |opened: &usize| *opened >= plan.connections();
            until_is("a crowd", PATIENCE, || Ok(counts.opened()), all)?;
            // An address of its own, and one shared with 40 connections of the crowd.
            for from in [Ipv4Addr::LOCALHOST, Plan::address(1)] {
                for path in ["/livez", "/readyz", "/metrics"] {
                    let answer = http::get_from(netns, Some(from.into()), address, path)?;
                    ensure!(answer.status == 200, "{path}: {answer}");
                }
            }
            let there = counts.open();
            ensure!(there >= plan.connections() / 2, "only {there} are there");
            Ok(())
        })?;
        scene.expect(Via::Http, at(WEB4)?, &ALL)
    })
}

#[test]
fn an_agent_that_runs_out_of_descriptors_answers_and_translates() -> Result<()> {
    idle(|scene| {
        let address = listening(scene)?;
        let process = scene.agent.process_id()?;
        let used = std::fs::read_dir(format!("/proc/{process}/fd")).context("no /proc")?.count();
        let few = u64::try_from(used + 16)?;
        let pid = Pid::from_raw(process.cast_signed());
        prlimit(pid, Resource::Nofile, Rlimit { current: Some(few), maximum: Some(few) })
            .context("cannot limit descriptors")?;
        let netns = scene.cluster.node_netns(HERE)?;
        let plan = Plan { addresses: 8, each: 16 };
        crowd::around(netns, address, plan, |counts| {
            until_is("a crowd", PATIENCE, || Ok(counts.opened()), |opened| *opened >= 128)?;
            for _ in 0..3 {
                for from in [Ipv4Addr::LOCALHOST, Plan::address(1)] {
                    let answer = http::get_from(netns, Some(from.into()), address, "/livez")?;
                    ensure!(answer.status == 200, "{answer}");
                }
            }
            Ok(())
        })?;
        scene.set_endpoints("web", &["a", "b"])?;
        scene.wait_for(Via::Http, at(WEB4)?, &["a", "b"])?;
        Ok(())
    })
}

/// The exit code and output of `topo-lb probe`.
fn probe(scene: &Scene<'_>, what: &str, socket: &Path) -> Result<(Option<i32>, String)> {
    let socket = socket.to_str().context("UTF-8")?;
    let output = scene.binary.run(&["probe", what, "--probe-socket", socket])?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn a_port_in_use_is_waited_for_while_connections_are_translated_and_probes_answered() -> Result<()>
{
    idle(|scene| {
        let address = Agent::address()?;
        let other = scene.cluster.node_netns(HERE)?.run(|| Ok(TcpListener::bind(address)?))?;
        let socket = scene.cluster.folder().join("probes").join("socket");
        scene.agent.set("--probe-socket", &socket);
        let (code, said) = probe(scene, "livez", &socket)?;
        ensure!(code == Some(1) && said.contains("no agent listens on"), "{code:?}: {said}");
        // The second agent finds the socket file that the first has left.
        for _ in 0..2 {
            scene.agent.kill();
            scene.agent.resume()?;
            let log = scene.agent.log();
            ensure!(log.contains(&format!("cannot listen on {address}: another process")), "{log}");
            let alive = probe(scene, "livez", &socket)?;
            ensure!(alive == (Some(0), "ok\n".to_owned()), "{alive:?}");
            until("readiness", FOLLOWS, || {
                let (code, said) = probe(scene, "readyz", &socket)?;
                Ok(if code == Some(0) { Ok(()) } else { Err(said) })
            })?;
        }
        scene.expect(Via::Http, at(WEB4)?, &ALL)?;
        drop(other);
        until("the port", PATIENCE, || {
            Ok(scene.agent.get("/livez").map(|_| ()).map_err(|error| format!("{error:#}")))
        })?;
        scene.agent.kill();
        let (code, said) = probe(scene, "readyz", &socket)?;
        ensure!(code == Some(1) && said.contains("no agent listens on"), "{code:?}: {said}");
        Ok(())
    })
}

#[test]
fn without_a_cluster_an_agent_is_alive_and_not_ready_and_says_why() -> Result<()> {
    idle(|scene| {
        let socket = scene.cluster.folder().join("probes");
        scene.agent.unset("--manifests");
        scene.agent.set("--api-server", "http://127.0.0.1:9");
        scene.agent.set("--probe-socket", &socket);
        scene.agent.launch()?;
        until("a reason why it is not ready", PATIENCE, || {
            let Ok(answer) = scene.agent.get("/readyz?verbose") else {
                return Ok(Err("nothing listens".to_owned()));
            };
            ensure!(answer.status == 503, "{answer}");
            let is_proven = answer.body.contains("[+] hooks: ");
            let waits = answer.body.contains("[-] synced: ");
            Ok(if is_proven && waits { Ok(()) } else { Err(answer.to_string()) })
        })?;
        ensure!(scene.agent.get("/livez")?.status == 200, "it is alive");
        let explain = scene.agent.get("/explain")?;
        ensure!(explain.status == 503 && explain.body.contains("not all listed"), "{explain}");
        let text = metrics(&scene.agent)?;
        ensure!(text.sample("topo_lb_ready") == Some(0.0), "{text}");
        let (code, said) = probe(scene, "readyz", &socket)?;
        ensure!(code == Some(1) && said.starts_with("not ready: "), "{code:?}: {said}");
        let (code, said) = probe(scene, "livez", &socket)?;
        ensure!(code == Some(0), "{said}");
        scene.agent.stop()
    })
}

#[test]
fn metrics_have_an_address_of_their_own_where_nothing_else_is_told() -> Result<()> {
    idle(|scene| {
        let address = SocketAddr::from(([127, 0, 0, 1], 8601));
        scene.agent.set("--metrics-listen", address.to_string());
        scene.agent.resume()?;
        let netns = scene.cluster.node_netns(HERE)?;
        let text = http::get(netns, address, "/metrics")?;
        ensure!(text.status == 200 && text.body.ends_with("# EOF\n"), "{text}");
        for path in ["/explain", "/state", "/livez"] {
            let answer = http::get(netns, address, path)?;
            ensure!(answer.status == 404, "{path}: {answer}");
            ensure!(scene.agent.get(path)?.status == 200, "{path} is still at --listen");
        }
        metrics(&scene.agent)?;
        Ok(())
    })
}

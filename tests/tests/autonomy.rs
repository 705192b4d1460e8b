//! A node whose API server is away: agents that start without it, from what they last knew, and that
//! find it again by themselves.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde_json::{Value, json};
use topo_lb_tests::agent::{Agent, Binary};
use topo_lb_tests::api::{READ, allow, change, create, of, reading, relabel};
use topo_lb_tests::client;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::control_plane::{AGENT, ControlPlane};
use topo_lb_tests::kind::{
    CONTROL_PLANE, HANGZHOU, HANGZHOU_CLIENT, NEIGHBOUR, POOL, SERVERS, WORKER, WORKER2, plan,
};
use topo_lb_tests::lab::within;
use topo_lb_tests::pod::PORT;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, KEYS, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until;

/// The Service that is called.
const WEB: &str = "10.96.3.1";
/// Another one, which comes and goes.
const SHOP: &str = "10.96.3.2";
/// The API server's own.
const KUBERNETES: &str = "10.96.0.1";

/// How long an agent that pauses between two attempts may take to find its server.
const SOON: Duration = Duration::from_secs(60);
/// Longer than until a change is saved.
const SAVED: Duration = Duration::from_secs(20);

/// A slice of a Service, with addresses and the nodes that they are on, as this server knows slices.
fn slice(
    old: bool,
    service: &str,
    (port_name, port): (Option<&str>, u16),
    endpoints: &[(String, Option<&str>)],
) -> Value {
    let endpoint = |(address, node): &(String, Option<&str>)| {
        let mut endpoint = json!({"addresses": [address]});
        match node {
            Some(node) if old => endpoint["topology"] = json!({"kubernetes.io/hostname": node}),
            Some(node) => endpoint["nodeName"] = json!(node),
            None => {}
        }
        endpoint
    };
    json!({
        "apiVersion": if old { "discovery.k8s.io/v1beta1" } else { "discovery.k8s.io/v1" },
        "kind": "EndpointSlice",
        "metadata": {"name": service, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": endpoints.iter().map(endpoint).collect::<Vec<_>>(),
        "ports": [{"name": port_name, "port": port, "protocol": "TCP"}],
    })
}

fn service(name: &str, address: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
           "spec": {"clusterIP": address, "ports": [{"port": 80}]}})
}

async fn describe(client: &Client, cluster: &Cluster, old: bool) -> Result<()> {
    allow(client, AGENT, "topo-lb", &reading(&READ)).await?;
    for (node, pool) in [(CONTROL_PLANE, "beijing"), (WORKER, "hangzhou"), (WORKER2, "shanghai")] {
        let metadata = json!({"name": node, "labels": {POOL: pool}});
        create(client, &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await?;
    }
    let mut web = service("web", WEB);
    web["metadata"]["annotations"] = json!({KEYS: POOL});
    create(client, &web).await?;
    create(client, &service("shop", SHOP)).await?;
    let mut endpoints = Vec::new();
    for name in SERVERS {
        let pod = cluster.pod(name)?;
        let node = [WORKER, WORKER2].into_iter().find(|node| *node == pod.node);
        endpoints.push((pod.ipv4.to_string(), node));
    }
    create(client, &slice(old, "web", (None, PORT), &endpoints)).await?;
    create(client, &slice(old, "shop", (None, PORT), &endpoints[..1])).await
}

/// A cluster with its servers, a control plane that describes it, and the agent of a node, which
/// saves its state and does not run yet.
struct Edge<'a> {
    cluster: &'a Cluster,
    plane: ControlPlane<'a>,
    agent: Agent<'a>,
    client: client::Client,
    state: PathBuf,
}

impl Edge<'_> {
    fn file(&self) -> PathBuf {
        self.state.join("cluster.state")
    }

    /// Waits until what is saved says, or no longer says, this.
    fn saved(&self, what: &str, is: bool) -> Result<()> {
        until(&format!("{what:?} in the saved state: {is}"), SAVED, || {
            let text = fs::read_to_string(self.file()).unwrap_or_default();
            Ok(if !text.is_empty() && text.contains(what) == is { Ok(()) } else { Err(text) })
        })?;
        Ok(())
    }

    /// The policy that keeps `web` in the pool is no more.
    fn open_web(&self) -> Result<()> {
        let none = json!({"metadata": {"annotations": {KEYS: null}}});
        self.plane.ask(async |client| change(&client, "Service", "web", &none).await)
    }
}

fn play(body: impl FnOnce(&mut Edge<'_>) -> Result<()>) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    within(&plan(), |cluster| {
        let plane = ControlPlane::in_lab(cluster)?;
        let old = plane.has_topology_keys()?;
        plane.ask(async |client| describe(&client, cluster, old).await)?;
        let servers: Result<Vec<_>> =
            SERVERS.into_iter().map(|pod| cluster.pod(pod)?.serve()).collect();
        let _servers = servers?;
        let kubeconfig = plane.kubeconfig(AGENT)?;
        let source = ("--kubeconfig", kubeconfig.as_path());
        let mut agent = Agent::prepare_from(&binary, cluster, WORKER, source)?;
        let state = cluster.folder().join("state");
        agent.set("--state-dir", state.to_str().context("a path in UTF-8")?);
        let client = cluster.pod(HANGZHOU_CLIENT)?.client()?;
        body(&mut Edge { cluster, plane, agent, client, state })
    })
}

#[test]
fn an_agent_that_is_there_before_its_server_waits_for_it() -> Result<()> {
    play(|edge| {
        edge.plane.kill_api_server();
        // What it finds instead of a state is of no use, and in nobody's way.
        fs::create_dir_all(&edge.state)?;
        fs::write(edge.file(), "no state at all\n")?;
        edge.agent.launch()?;
        until("a word about the server and about the file", SOON, || {
            let log = edge.agent.log();
            let said = log.contains("cannot reach the API server")
                && log.contains("it is damaged")
                && log.contains("was set aside as");
            Ok(if said { Ok(()) } else { Err(log) })
        })?;
        ensure!(!edge.agent.pins().exists(), "something is in the kernel, and nothing is known");
        ensure!(edge.state.join("cluster.state.set-aside").exists(), "the file is gone");
        edge.plane.start_api_server()?;
        edge.agent.wait_for_log("datapath attached", SOON)?;
        edge.agent.wait_until_ready()?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, FOLLOWS)?;
        edge.saved("\"web\"", true)
    })
}

/// A file system of a few kilobytes, until it is dropped.
struct Small(PathBuf);

impl Small {
    fn at(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "topo-lb-small"]).arg(path);
        ensure!(mount.status()?.success(), "cannot mount a small file system");
        Ok(Self(path.to_owned()))
    }

    /// Leaves no room.
    fn fill(&self) -> Result<()> {
        let error = fs::write(self.0.join("others"), vec![1; 1 << 20]).expect_err("it is small");
        ensure!(error.kind() == ErrorKind::StorageFull, "{error}");
        Ok(())
    }

    fn make_room(&self) -> Result<()> {
        Ok(fs::remove_file(self.0.join("others"))?)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_keeps_the_state_that_was_saved_and_is_said_once() -> Result<()> {
    const TROUBLE: &str = "the state cannot be saved as";
    play(|edge| {
        let disk = Small::at(&edge.state)?;
        edge.agent.resume()?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, FOLLOWS)?;
        edge.saved("\"shop\"", true)?;
        disk.fill()?;
        let before = fs::read(edge.file())?;
        edge.open_web()?;
        edge.client.until_answered_by(at(WEB)?, &SERVERS, FOLLOWS)?;
        let said = |log: &str| log.matches(TROUBLE).count();
        until("a word about the disk", SAVED, || {
            let log = edge.agent.log();
            Ok(if said(&log) > 0 { Ok(()) } else { Err(log) })
        })?;
        // Everything else goes on, and what was saved stays whole.
        edge.plane.ask(async |client| relabel(&client, WORKER, POOL, "ningbo").await)?;
        let strict = json!({"metadata": {"annotations": {KEYS: POOL}}});
        edge.plane.ask(async |client| change(&client, "Service", "web", &strict).await)?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, FOLLOWS)?;
        ensure!(fs::read(edge.file())? == before, "what was saved is another file");
        ensure!(!edge.state.join("cluster.state.new").exists(), "half of a file is left");

        disk.make_room()?;
        edge.saved("\"ningbo\"", true)?;
        edge.agent.wait_for_log("the state can be saved again", SAVED)?;
        let log = edge.agent.log();
        ensure!(said(&log) == 1, "it is said more than once:\n{log}");
        edge.agent.stop()
    })
}

#[test]
fn without_a_server_it_serves_what_it_last_knew() -> Result<()> {
    play(|edge| {
        edge.agent.resume()?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, FOLLOWS)?;
        edge.saved("\"web\"", true)?;

        // As after a loss of power: nothing is in the kernel, and nobody is there to ask.
        edge.plane.kill_api_server();
        edge.agent.kill();
        edge.agent.cleanup()?;
        edge.agent.launch()?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, SOON)?;
        edge.agent.wait_until_ready()?;
        let log = edge.agent.log();
        ensure!(log.contains("starting from the state as it was"), "it does not say so:\n{log}");

        // The server returns with other objects than were saved.
        let (tally, ()) = edge.client.call_during(Via::Http, at(WEB)?, || {
            edge.plane.start_api_server()?;
            edge.plane.ask(async |client| {
                relabel(&client, WORKER2, "example.com/changed", "yes").await?;
                of(&client, "v1", "Service").delete("shop", &Default::default()).await?;
                Ok(())
            })?;
            until("the end of what is gone", SOON, || {
                let services = edge.agent.list("services")?.to_string();
                Ok(if services.contains("shop") { Err(services) } else { Ok(()) })
            })?;
            Ok(())
        })?;
        ensure!(tally.is_of(&HANGZHOU), "while the server returned: {tally}");
        edge.open_web()?;
        edge.client.until_answered_by(at(WEB)?, &SERVERS, SOON)?;
        edge.agent.wait_for_log("tells all of the cluster again", SOON)?;
        Ok(())
    })
}

#[test]
fn what_the_last_agent_left_outlasts_a_restart_without_a_server() -> Result<()> {
    play(|edge| {
        edge.agent.resume()?;
        edge.saved("\"web\"", true)?;
        let older = fs::read(edge.file())?;
        edge.open_web()?;
        edge.client.until_answered_by(at(WEB)?, &SERVERS, FOLLOWS)?;

        // It was killed before it had saved that.
        edge.agent.kill();
        edge.plane.kill_api_server();
        fs::write(edge.file(), older)?;
        edge.agent.resume()?;
        let log = edge.agent.log();
        ensure!(log.contains("is no older"), "it does not say so:\n{log}");
        let tally = edge.client.call(Via::Http, at(WEB)?, 200)?;
        ensure!(tally.is_of(&SERVERS), "by an older state than the kernel's: {tally}");

        edge.plane.start_api_server()?;
        let again = json!({"metadata": {"annotations": {KEYS: POOL}}});
        edge.plane.ask(async |client| change(&client, "Service", "web", &again).await)?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, SOON)?;
        Ok(())
    })
}

#[test]
fn a_server_that_is_killed_again_and_again_costs_no_connection() -> Result<()> {
    play(|edge| {
        edge.agent.resume()?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, FOLLOWS)?;
        let Edge { plane, client, .. } = edge;
        let (tally, ()) = client.call_during(Via::Http, at(WEB)?, || {
            for pool in ["beijing", "hangzhou", "beijing"] {
                plane.kill_api_server();
                thread::sleep(Duration::from_millis(500));
                plane.start_api_server()?;
                plane.ask(async |client| relabel(&client, CONTROL_PLANE, POOL, pool).await)?;
            }
            Ok(())
        })?;
        ensure!(tally.is_of(&HANGZHOU), "{tally}");
        edge.open_web()?;
        let took = edge.client.until_answered_by(at(WEB)?, &SERVERS, SOON)?;
        eprintln!("after the last return, a change was followed within {took:?}");
        let log = edge.agent.log();
        // It says so for a moment, until it has read them.
        ensure!(!log.contains("does not let this agent"), "roles are complained about:\n{log}");
        Ok(())
    })
}

#[test]
fn a_token_that_has_run_out_is_replaced_by_the_one_in_its_file() -> Result<()> {
    play(|edge| {
        let token = edge.cluster.folder().join("token");
        fs::write(&token, AGENT)?;
        let kubeconfig = edge.plane.kubeconfig(AGENT)?;
        let text = fs::read_to_string(&kubeconfig)?;
        let from_file = format!("tokenFile: \"{}\"", token.display());
        let changed = text.replace(&format!("token: {AGENT}"), &from_file);
        ensure!(changed != text, "the kubeconfig holds no token: {text}");
        let path = kubeconfig.with_extension("token-file");
        fs::write(&path, changed)?;
        edge.agent.set("--kubeconfig", path.to_str().context("a path in UTF-8")?);
        edge.agent.resume()?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, FOLLOWS)?;

        edge.plane.kill_api_server();
        edge.plane.set_token("another");
        edge.plane.start_api_server()?;
        edge.open_web()?;
        let Edge { client, .. } = edge;
        // What the server says to nobody does not reach it.
        let (tally, ()) = client.call_during(Via::Http, at(WEB)?, || {
            thread::sleep(Duration::from_secs(3));
            Ok(())
        })?;
        ensure!(tally.is_of(&HANGZHOU), "with a token that has run out: {tally}");
        fs::write(&token, "another")?;
        let took = client.until_answered_by(at(WEB)?, &SERVERS, SOON)?;
        eprintln!("a renewed token was used within {took:?}");
        Ok(())
    })
}

/// A kubeconfig like `like` with another server, beside it.
fn with_server(like: &Path, server: &str) -> Result<PathBuf> {
    let text = fs::read_to_string(like)?;
    let (before, rest) = text.split_once("server: \"").context("a kubeconfig names a server")?;
    let (_, after) = rest.split_once('"').context("a kubeconfig names a server")?;
    let path = like.with_extension("in-cluster");
    fs::write(&path, format!("{before}server: \"{server}\"{after}"))?;
    Ok(path)
}

#[test]
fn the_server_is_reached_where_its_own_service_leads_to_a_dead_endpoint() -> Result<()> {
    play(|edge| {
        let kubeconfig = edge.plane.kubeconfig(AGENT)?;
        let direct = fs::read_to_string(&kubeconfig)?;
        let server = direct.split("https://").nth(1).and_then(|it| it.split(':').next());
        let server = server.context("a kubeconfig names a server")?.to_owned();
        // Of two endpoints, this node may use the one that is dead, and sorts first.
        let dead = edge.cluster.pod(NEIGHBOUR)?.ipv4.to_string();
        let old = edge.plane.has_topology_keys()?;
        let endpoints = [(dead, Some(WORKER)), (server, None)];
        let policy = json!({"metadata": {"annotations": {KEYS: "kubernetes.io/hostname"}}});
        edge.plane.ask(async |client| {
            relabel(&client, WORKER, "kubernetes.io/hostname", WORKER).await?;
            create(&client, &slice(old, "kubernetes", (Some("https"), 6443), &endpoints)).await?;
            change(&client, "Service", "kubernetes", &policy).await
        })?;
        edge.agent.resume()?;
        let to = SocketAddr::new(KUBERNETES.parse()?, 443);
        until("a dead endpoint for the API server's Service", FOLLOWS, || {
            let tally = edge.client.call(Via::Http, to, 8)?;
            Ok(if tally.refused == tally.requests { Ok(()) } else { Err(tally) })
        })?;
        edge.saved("6443", true)?;
        edge.agent.stop()?;

        // As a Pod is told: the ClusterIP, which this node translates.
        let path = with_server(&kubeconfig, &format!("https://{KUBERNETES}"))?;
        edge.agent.set("--kubeconfig", path.to_str().context("a path in UTF-8")?);
        edge.agent.live_inside();
        edge.agent.resume()?;
        edge.open_web()?;
        edge.client.until_answered_by(at(WEB)?, &SERVERS, SOON)?;

        // And again after the server was away.
        edge.plane.kill_api_server();
        thread::sleep(Duration::from_millis(500));
        edge.plane.start_api_server()?;
        let again = json!({"metadata": {"annotations": {KEYS: POOL}}});
        edge.plane.ask(async |client| change(&client, "Service", "web", &again).await)?;
        edge.client.until_answered_by(at(WEB)?, &HANGZHOU, SOON)?;
        Ok(())
    })
}

/// Nothing but topo-lb translates a ClusterIP in the lab: the test above passes by the endpoints
/// alone.
#[test]
fn where_nothing_was_saved_a_cluster_ip_leads_nowhere() -> Result<()> {
    play(|edge| {
        let path = with_server(&edge.plane.kubeconfig(AGENT)?, &format!("https://{KUBERNETES}"))?;
        edge.agent.set("--kubeconfig", path.to_str().context("a path in UTF-8")?);
        edge.agent.live_inside();
        edge.agent.launch()?;
        edge.agent.wait_for_log("cannot reach the API server at https://10.96.0.1", SOON)?;
        ensure!(!edge.agent.pins().exists(), "something is in the kernel, and nothing is known");
        Ok(())
    })
}

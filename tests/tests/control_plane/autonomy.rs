//! A node without its API server: agents start from the saved state, and reconnect by themselves.

use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::api::{READ, reading};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::client::Client;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::control_plane::{AGENT, ControlPlane};
use topo_lb_tests::kind::{
    CONTROL_PLANE, HANGZHOU, HANGZHOU_CLIENT, NEIGHBOUR, POOL, SERVERS, SHANGHAI, WORKER, WORKER2,
    plan,
};
use topo_lb_tests::lab::{play_all, within};
use topo_lb_tests::manifest::{endpoint, node, service, slice};
use topo_lb_tests::pod::PORT;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, KEYS, ZONE, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until_is;

/// The Service under test.
const WEB: &str = "10.96.3.1";
/// A Service that is created and deleted.
const SHOP: &str = "10.96.3.2";
/// A Service with OpenYurt's annotation.
const TUTORIAL: &str = "10.96.3.5";
/// The API server's own Service.
const KUBERNETES: &str = "10.96.0.1";

/// The limit for an agent that waits before it retries to find its server.
const SOON: Duration = Duration::from_secs(60);
/// Longer than it takes to save a change.
const SAVED: Duration = Duration::from_secs(20);

/// A cluster with servers, a control plane, and an agent that saves its state and does not run yet.
struct Edge<'a> {
    binary: Binary,
    cluster: &'a Cluster,
    plane: ControlPlane<'a>,
    agent: Agent<'a>,
    client: Client,
    state: PathBuf,
}

impl Edge<'_> {
    /// Resets everything: no agent, no saved state, nothing in the kernel, the initial objects.
    fn begin(&mut self) -> Result<()> {
        self.agent.kill();
        self.agent.cleanup()?;
        let _ = fs::remove_dir_all(&self.state);
        self.agent = self.plane.agent(&self.binary, WORKER)?;
        self.agent.set("--state-dir", &self.state);
        self.plane.clear()?;
        let mut endpoints = Vec::new();
        for name in SERVERS {
            let pod = self.cluster.pod(name)?;
            endpoints.push(endpoint(&pod.ipv4.to_string(), &pod.node, name));
        }
        let (ports, targets) = ([("", 80, "TCP")], [("", PORT, "TCP")]);
        self.plane.create([
            node(CONTROL_PLANE, &[(POOL, "beijing")]),
            node(WORKER, &[(POOL, "hangzhou")]),
            node(WORKER2, &[(POOL, "shanghai")]),
            service("web", &[WEB], &ports, &[(KEYS, POOL)]),
            service("shop", &[SHOP], &ports, &[]),
            slice("web", "IPv4", &targets, &endpoints),
            slice("shop", "IPv4", &targets, &endpoints[..1]),
        ])
    }

    fn file(&self) -> PathBuf {
        self.state.join("cluster.state")
    }

    /// Waits until the saved state contains `what`.
    fn saved(&self, what: &str) -> Result<()> {
        let look = || Ok(fs::read_to_string(self.file()).unwrap_or_default());
        until_is(&format!("{what:?} in the saved state"), SAVED, look, |text| text.contains(what))?;
        Ok(())
    }

    /// Removes the policy that restricts `web` to the pool.
    fn open_web(&self) -> Result<()> {
        self.plane.annotate("web", KEYS, None)
    }

    /// Restricts `web` to the pool.
    fn close_web(&self) -> Result<()> {
        self.plane.annotate("web", KEYS, Some(POOL))
    }

    fn answered_by(&mut self, pods: &[&str], limit: Duration) -> Result<Duration> {
        self.client.wait_for(Via::Http, at(WEB)?, pods, limit)
    }

    /// Adds or removes the node's route to the API server.
    fn connect(&self, connected: bool) -> Result<()> {
        let change = if connected { "delete" } else { "add" };
        self.cluster
            .ip_on(WORKER, &[format!("route {change} unreachable {}", self.plane.address())])
    }

    /// Runs `work` while the node has no route to the API server.
    fn cut_off(&mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        self.connect(false)?;
        let outcome = work(self);
        self.connect(true)?;
        outcome
    }
}

#[test]
fn a_node_serves_while_its_api_server_is_away_and_finds_it_again() -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    within(&plan(), |cluster| {
        let plane = ControlPlane::in_lab(cluster)?;
        plane.allow("topo-lb", &reading(&READ))?;
        let _servers = cluster.serve(SERVERS)?;
        let state = cluster.folder().join("state");
        let agent = plane.agent(&binary, WORKER)?;
        let client = cluster.pod(HANGZHOU_CLIENT)?.client()?;
        let mut edge = Edge { binary, cluster, plane, agent, client, state };
        play_all(
            &mut edge,
            Edge::begin,
            &[
                ("an agent that is there before its server waits", waits_for_its_server),
                ("a full disk keeps the saved state and is logged once", full_disk),
                ("without a server it serves what it last knew", serves_what_it_knew),
                ("what the last agent left outlasts a restart", outlasts_a_restart),
                ("a pool that is a zone stays closed", pools_that_are_zones_stay_closed),
                ("without a saved state a ClusterIP leads nowhere", nothing_saved),
                ("a dead endpoint, a server that is killed, a token that runs out", finds_it_again),
            ],
        )
    })
}

fn waits_for_its_server(edge: &mut Edge<'_>) -> Result<()> {
    edge.cut_off(|edge| {
        // A damaged state file is of no use, but does no harm.
        fs::create_dir_all(&edge.state)?;
        fs::write(edge.file(), "no state at all\n")?;
        edge.agent.launch()?;
        for said in ["cannot reach the API server", "it is damaged", "was set aside as"] {
            edge.agent.wait_for_log(said, SOON)?;
        }
        ensure!(!edge.agent.pins().exists(), "something is in the kernel, and nothing is known");
        ensure!(edge.state.join("cluster.state.set-aside").exists(), "the file is gone");
        Ok(())
    })?;
    edge.agent.wait_for_log("datapath attached", SOON)?;
    edge.agent.wait_until_ready()?;
    edge.answered_by(&HANGZHOU, FOLLOWS)?;
    edge.saved("\"web\"")
}

/// A file system of 64 KiB, mounted until dropped.
struct Small(PathBuf);

impl Small {
    fn at(path: &Path) -> Result<Self> {
        fs::create_dir_all(path)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=64k,mode=700", "topo-lb-small"]).arg(path);
        ensure!(mount.status()?.success(), "cannot mount a small file system");
        Ok(Self(path.to_owned()))
    }

    /// Uses up all room.
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

fn full_disk(edge: &mut Edge<'_>) -> Result<()> {
    const TROUBLE: &str = "the state cannot be saved as";
    let disk = Small::at(&edge.state)?;
    edge.agent.resume()?;
    edge.answered_by(&HANGZHOU, FOLLOWS)?;
    edge.saved("\"shop\"")?;
    disk.fill()?;
    let before = fs::read(edge.file())?;
    edge.open_web()?;
    edge.answered_by(&SERVERS, FOLLOWS)?;
    edge.agent.wait_for_log(TROUBLE, SAVED)?;
    // Everything else continues, and the saved file stays intact.
    edge.plane.relabel(WORKER, POOL, Some("ningbo"))?;
    edge.close_web()?;
    edge.answered_by(&HANGZHOU, FOLLOWS)?;
    ensure!(fs::read(edge.file())? == before, "what was saved is another file");
    ensure!(!edge.state.join("cluster.state.new").exists(), "half of a file is left");

    disk.make_room()?;
    edge.saved("\"ningbo\"")?;
    edge.agent.wait_for_log("the state can be saved again", SAVED)?;
    let log = edge.agent.log();
    ensure!(log.matches(TROUBLE).count() == 1, "it is logged more than once:\n{log}");
    edge.agent.stop()
}

fn serves_what_it_knew(edge: &mut Edge<'_>) -> Result<()> {
    edge.agent.resume()?;
    edge.answered_by(&HANGZHOU, FOLLOWS)?;
    edge.saved("\"web\"")?;
    // As after a power failure: nothing is in the kernel, and no server answers.
    edge.agent.kill();
    edge.agent.cleanup()?;
    edge.cut_off(|edge| {
        edge.agent.launch()?;
        edge.answered_by(&HANGZHOU, SOON)?;
        edge.agent.wait_until_ready()?;
        edge.agent.wait_for_log("starting from the state as it was", FOLLOWS)?;
        // When the node reconnects, the server's objects differ from the saved ones.
        edge.plane.relabel(WORKER2, "example.com/changed", Some("yes"))?;
        edge.plane.delete("Service", &["shop"])
    })?;
    let agent = &edge.agent;
    let (tally, _) = edge.client.call_during(Via::Http, at(WEB)?, || {
        let is_gone = |services: &Value| !services.to_string().contains("shop");
        agent.wait_for_services(SOON, is_gone)
    })?;
    ensure!(tally.is_of(&HANGZHOU), "while the server returned: {tally}");
    edge.open_web()?;
    edge.answered_by(&SERVERS, SOON)?;
    edge.agent.wait_for_log("tells all of the cluster again", SOON)
}

fn outlasts_a_restart(edge: &mut Edge<'_>) -> Result<()> {
    edge.agent.resume()?;
    edge.saved("\"web\"")?;
    let older = fs::read(edge.file())?;
    edge.open_web()?;
    edge.answered_by(&SERVERS, FOLLOWS)?;
    // The agent is killed before it has saved this change.
    edge.agent.kill();
    edge.cut_off(|edge| {
        fs::write(edge.file(), older)?;
        edge.agent.resume()?;
        edge.agent.wait_for_log("is no older", FOLLOWS)?;
        let tally = edge.client.call(Via::Http, at(WEB)?, 200)?;
        ensure!(tally.is_of(&SERVERS), "by an older state than the kernel's: {tally}");
        Ok(())
    })?;
    edge.close_web()?;
    edge.answered_by(&HANGZHOU, SOON)?;
    Ok(())
}

/// OpenYurt's tutorial after openyurt#2550: a pool's name is the zone of its nodes. A Service by the zone's
/// key and one by OpenYurt's annotation give a pool that is cut off the same endpoints, also after a power
/// failure; a Service without endpoints there is refused, and does not lead to another pool.
fn pools_that_are_zones_stay_closed(edge: &mut Edge<'_>) -> Result<()> {
    let mut endpoints = Vec::new();
    for (zone, node, pods) in [("hangzhou", WORKER, HANGZHOU), ("shanghai", WORKER2, SHANGHAI)] {
        edge.plane.relabel(node, ZONE, Some(zone))?;
        for name in pods {
            let mut one = endpoint(&edge.cluster.pod(name)?.ipv4.to_string(), node, name);
            one["zone"] = zone.into();
            endpoints.push(one);
        }
    }
    edge.plane.delete("Service", &["web", "shop"])?;
    edge.plane.delete("EndpointSlice", &["web-ipv4", "shop-ipv4"])?;
    let (ports, targets) = ([("", 80, "TCP")], [("", PORT, "TCP")]);
    let openyurt = ("openyurt.io/topologyKeys", "openyurt.io/nodepool");
    edge.plane.create([
        service("web", &[WEB], &ports, &[(KEYS, ZONE)]),
        service("tutorial", &[TUTORIAL], &ports, &[openyurt]),
        service("shop", &[SHOP], &ports, &[(KEYS, ZONE)]),
        slice("web", "IPv4", &targets, &endpoints),
        slice("tutorial", "IPv4", &targets, &endpoints),
        // Those in shanghai.
        slice("shop", "IPv4", &targets, &endpoints[2..]),
    ])?;
    edge.agent.resume()?;
    edge.is_closed_in_hangzhou(FOLLOWS).context("with its server")?;
    for what in ["\"web\"", "\"tutorial\"", "\"shop\"", "\"shanghai\""] {
        edge.saved(what)?;
    }
    edge.cut_off(|edge| {
        edge.is_closed_in_hangzhou(FOLLOWS).context("cut off")?;
        edge.agent.kill();
        edge.agent.cleanup()?;
        edge.agent.launch()?;
        edge.is_closed_in_hangzhou(SOON).context("cut off, after a power failure")?;
        edge.agent.wait_until_ready()?;
        // Nothing of this reaches the node.
        edge.plane.annotate("web", KEYS, None)?;
        edge.plane.annotate("tutorial", openyurt.0, None)?;
        edge.is_closed_in_hangzhou(FOLLOWS).context("cut off from a change")
    })?;
    edge.answered_by(&SERVERS, SOON).context("without the key, with its server again")?;
    edge.client.wait_for(Via::Http, at(TUTORIAL)?, &SERVERS, SOON)?;
    Ok(())
}

impl Edge<'_> {
    /// Waits until the client in hangzhou reaches its pool alone, and is refused where that has nothing.
    fn is_closed_in_hangzhou(&mut self, limit: Duration) -> Result<()> {
        for (address, pods) in [(WEB, &HANGZHOU[..]), (TUTORIAL, &HANGZHOU[..]), (SHOP, &[][..])] {
            self.client.wait_for(Via::Http, at(address)?, pods, limit)?;
            self.client.expect(Via::Http, at(address)?, pods)?;
        }
        Ok(())
    }
}

/// Only topo-lb translates ClusterIPs here: [`finds_it_again`] reaches the server by its endpoints.
fn nothing_saved(edge: &mut Edge<'_>) -> Result<()> {
    edge.tell_as_a_pod()?;
    edge.agent.launch()?;
    edge.agent.wait_for_log("cannot reach the API server at https://10.96.0.1", SOON)?;
    ensure!(!edge.agent.pins().exists(), "something is in the kernel, and nothing is known");
    Ok(())
}

impl Edge<'_> {
    /// Gives the agent what a Pod has: the server's ClusterIP and a token file. Returns that file.
    fn tell_as_a_pod(&mut self) -> Result<PathBuf> {
        let token = self.cluster.folder().join("token");
        fs::write(&token, AGENT)?;
        let kubeconfig = self.plane.kubeconfig(AGENT)?;
        let text = fs::read_to_string(&kubeconfig)?;
        let changed = text
            .replace(&format!("token: {AGENT}"), &format!("tokenFile: \"{}\"", token.display()))
            .replace(&format!("{}:6443", self.plane.address()), KUBERNETES);
        ensure!(changed.contains("tokenFile") && changed.contains(KUBERNETES), "{text}");
        let path = kubeconfig.with_extension("in-cluster");
        fs::write(&path, changed)?;
        self.agent.set("--kubeconfig", &path);
        self.agent.live_inside();
        Ok(token)
    }
}

fn finds_it_again(edge: &mut Edge<'_>) -> Result<()> {
    // Of two endpoints, this node may use only the dead one, which sorts first.
    let dead = edge.cluster.pod(NEIGHBOUR)?.ipv4.to_string();
    let mut alive = endpoint(&edge.plane.address().to_string(), "", "server");
    alive.as_object_mut().context("an object")?.remove("nodeName");
    let endpoints = [endpoint(&dead, WORKER, "dead"), alive];
    edge.plane.create([slice("kubernetes", "IPv4", &[("https", 6443, "TCP")], &endpoints)])?;
    edge.plane.annotate("kubernetes", KEYS, Some("kubernetes.io/hostname"))?;
    edge.agent.resume()?;
    let to = SocketAddr::new(KUBERNETES.parse()?, 443);
    edge.client.wait_for(Via::Http, to, &[], FOLLOWS).context("a dead endpoint")?;
    edge.saved("6443")?;
    edge.agent.stop()?;
    let token = edge.tell_as_a_pod()?;
    edge.agent.resume()?;
    edge.open_web()?;
    edge.answered_by(&SERVERS, SOON).context("through a Service with a dead endpoint")?;

    let mut caller = edge.cluster.pod(HANGZHOU_CLIENT)?.client()?;
    let (tally, ()) = caller.call_during(Via::Http, at(WEB)?, || {
        // The second time the server comes back with another token.
        for (new, address) in [(AGENT, "10.96.3.3"), ("another", "10.96.3.4")] {
            edge.plane.kill_api_server();
            edge.plane.set_token(new);
            edge.plane.start_api_server()?;
            edge.plane.create([service(new, &[address], &[("", 80, "TCP")], &[])])?;
            if new != AGENT {
                // Logged after a minute: until then, the server may just be starting.
                edge.agent.wait_for_log("does not accept this agent's credentials", 2 * SOON)?;
                fs::write(&token, new)?;
            }
            let name = format!("default/{new}");
            edge.agent.wait_for_services(SOON, |it| it.to_string().contains(&name))?;
        }
        Ok(())
    })?;
    ensure!(tally.is_of(&SERVERS), "{tally}");
    edge.close_web()?;
    edge.answered_by(&HANGZHOU, SOON)?;
    // The server may refuse it briefly, until it has read its roles.
    let log = edge.agent.log();
    ensure!(!log.contains("does not let"), "the log complains about roles:\n{log}");
    Ok(())
}

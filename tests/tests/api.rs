//! The OpenYurt tutorial over a real API: agents fed by kube-apiserver, with EndpointSlices made
//! by the controllers of Kubernetes.

use std::collections::BTreeSet;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde_json::{Value, json};
use topo_lb_tests::agent::{Agent, Binary};
use topo_lb_tests::api::{READ, allow, change, create, reading, relabel, run_pod, set_ready};
use topo_lb_tests::client;
use topo_lb_tests::cluster::Cluster;
use topo_lb_tests::control_plane::{AGENT, ControlPlane};
use topo_lb_tests::kind::{
    BEIJING_CLIENT, CONTROL_PLANE, HANGZHOU, HANGZHOU_CLIENT, POOL, SERVERS, SHANGHAI,
    SHANGHAI_CLIENT, WORKER, WORKER2, plan,
};
use topo_lb_tests::lab::within;
use topo_lb_tests::process::Running;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, KEYS, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until;

/// The tutorial's Service, its twin without a policy, and one with `spec.topologyKeys` or, where
/// the server does not know the field, the same in an annotation.
const UD1: &str = "10.96.3.1";
const UD1_WITHOUT_TOPOLOGY: &str = "10.96.3.2";
const BY_KEYS: &str = "10.96.3.3";

const APP: &str = "united-deployment1";

/// A change of the cluster is to be seen by a client within this time.
const AT_ONCE: Duration = Duration::from_secs(1);
/// How long a controller, or an agent that pauses between two attempts, may take.
const SOON: Duration = Duration::from_secs(60);

/// A client in each pool.
struct Clients {
    beijing: client::Client,
    hangzhou: client::Client,
    shanghai: client::Client,
}

impl Clients {
    fn start(cluster: &Cluster) -> Result<Self> {
        Ok(Self {
            beijing: cluster.pod(BEIJING_CLIENT)?.client()?,
            hangzhou: cluster.pod(HANGZHOU_CLIENT)?.client()?,
            shanghai: cluster.pod(SHANGHAI_CLIENT)?.client()?,
        })
    }
}

async fn describe(client: &Client, cluster: &Cluster, topology_keys: bool) -> Result<()> {
    let nodes = [(CONTROL_PLANE, "beijing"), (WORKER, "hangzhou"), (WORKER2, "shanghai")];
    for (node, pool) in nodes {
        let labels = json!({"kubernetes.io/hostname": node, POOL: pool});
        let metadata = json!({"name": node, "labels": labels});
        create(client, &json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata})).await?;
    }
    let pool = json!({"openyurt.io/topologyKeys": "openyurt.io/nodepool"});
    let keys = ["kubernetes.io/hostname", POOL];
    let by_keys = if topology_keys { json!({}) } else { json!({KEYS: keys.join(",")}) };
    let services = [
        ("svc-ud1", UD1, pool),
        ("svc-ud1-without-topology", UD1_WITHOUT_TOPOLOGY, json!({})),
        ("svc-by-keys", BY_KEYS, by_keys),
    ];
    for (name, address, annotations) in services {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"clusterIP": address, "selector": {"app": APP},
                     "ports": [{"port": 80, "targetPort": 9376}]},
        });
        if topology_keys && name == "svc-by-keys" {
            service["spec"]["topologyKeys"] = json!(keys);
        }
        create(client, &service).await?;
    }
    for name in SERVERS {
        run_pod(client, cluster.pod(name)?, &json!({"app": APP})).await?;
    }
    Ok(())
}

/// The tutorial's cluster with its servers, a control plane and an agent on every node.
fn play(
    body: impl FnOnce(&Cluster, &mut ControlPlane<'_>, &mut [Agent<'_>], &mut Clients) -> Result<()>,
) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    within(&plan(), |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.start_controllers()?;
        let topology_keys = plane.has_topology_keys()?;
        plane.ask(async |client| {
            allow(&client, AGENT, "topo-lb", &reading(&READ)).await?;
            describe(&client, cluster, topology_keys).await
        })?;
        let servers: Result<Vec<Running>> =
            SERVERS.into_iter().map(|pod| cluster.pod(pod)?.serve()).collect();
        let _servers = servers?;
        let mut clients = Clients::start(cluster)?;
        let kubeconfig = plane.kubeconfig(AGENT)?;
        let source = ("--kubeconfig", kubeconfig.as_path());
        let mut agents = Agent::start_all_from(&binary, cluster, source)?;
        // The controllers have made the slices by then, or are about to.
        clients.hangzhou.until_answered_by(at(UD1_WITHOUT_TOPOLOGY)?, &SERVERS, SOON)?;
        body(cluster, &mut plane, &mut agents, &mut clients)
    })
}

#[test]
fn the_tutorial_over_a_real_api() -> Result<()> {
    play(|_, plane, _, clients| {
        clients.hangzhou.until_answered_by(at(UD1)?, &HANGZHOU, FOLLOWS)?;
        clients.shanghai.until_answered_by(at(UD1)?, &SHANGHAI, FOLLOWS)?;
        clients.beijing.until_answered_by(at(UD1)?, &[], FOLLOWS)?;
        for client in [&mut clients.beijing, &mut clients.hangzhou, &mut clients.shanghai] {
            client.until_answered_by(at(UD1_WITHOUT_TOPOLOGY)?, &SERVERS, FOLLOWS)?;
        }

        // Keys of the field: this node, then this pool, and nobody else.
        clients.shanghai.until_answered_by(at(BY_KEYS)?, &SHANGHAI, FOLLOWS)?;
        clients.beijing.until_answered_by(at(BY_KEYS)?, &[], FOLLOWS)?;

        // A node moves: the request, the watch, the maps and the client, all within a second.
        plane.ask(async |client| relabel(&client, CONTROL_PLANE, POOL, "shanghai").await)?;
        let took = clients.beijing.until_answered_by(at(UD1)?, &SHANGHAI, AT_ONCE)?;
        clients.beijing.until_answered_by(at(BY_KEYS)?, &SHANGHAI, AT_ONCE)?;
        eprintln!("a relabelled node was followed within {took:?}");

        // A pod becomes unready: the controller's slice says so, and traffic follows.
        let [out, stays] = HANGZHOU;
        plane.ask(async |client| set_ready(&client, out, false).await)?;
        clients.hangzhou.until_answered_by(at(UD1)?, &[stays], SOON)?;
        plane.ask(async |client| set_ready(&client, stays, false).await)?;
        clients.hangzhou.until_answered_by(at(UD1)?, &[], SOON)?;
        clients.hangzhou.until_answered_by(at(UD1_WITHOUT_TOPOLOGY)?, &SHANGHAI, FOLLOWS)?;
        plane.ask(async |client| {
            set_ready(&client, out, true).await?;
            set_ready(&client, stays, true).await
        })?;
        clients.hangzhou.until_answered_by(at(UD1)?, &HANGZHOU, SOON)?;

        // A policy taken away is no policy.
        let none = json!({"metadata": {"annotations": {"openyurt.io/topologyKeys": null}}});
        plane.ask(async |client| change(&client, "Service", "svc-ud1", &none).await)?;
        clients.hangzhou.until_answered_by(at(UD1)?, &SERVERS, AT_ONCE)?;
        Ok(())
    })
}

/// A trouble is one sentence, however many attempts meet it, and the agent's own.
fn ensure_said_once(log: &str) -> Result<()> {
    let mut said = BTreeSet::new();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).context("a line of the log is not JSON")?;
        let from = line["target"].as_str().unwrap_or_default();
        ensure!(from.starts_with("topo_lb"), "{from} has logged {}", line["message"]);
        let new = line["level"] != "WARN" || said.insert(line["message"].to_string());
        ensure!(new, "said twice: {}", line["message"]);
    }
    ensure!(!said.is_empty(), "nothing was said");
    Ok(())
}

#[test]
fn traffic_goes_on_without_the_api_server_and_follows_it_again() -> Result<()> {
    play(|_, plane, agents, clients| {
        clients.hangzhou.until_answered_by(at(UD1)?, &HANGZHOU, FOLLOWS)?;
        let before = agents[1].objects()?;
        plane.kill_api_server();
        let agent = &agents[1];
        let (tally, _) = clients.hangzhou.call_during(Via::Http, at(UD1)?, || {
            agent.wait_for_log("cannot reach the API server at https://172.30.0.254:6443", SOON)?;
            // Connections were made all the while; some more, now that everybody knows.
            thread::sleep(Duration::from_millis(500));
            Ok(())
        })?;
        ensure!(tally.is_of(&HANGZHOU), "without the API server: {tally}");
        clients.beijing.until_answered_by(at(UD1)?, &[], FOLLOWS)?;

        plane.start_api_server()?;
        plane.ask(async |client| relabel(&client, CONTROL_PLANE, POOL, "hangzhou").await)?;
        let (tally, took) = clients.hangzhou.call_during(Via::Http, at(UD1)?, || {
            clients.beijing.until_answered_by(at(UD1)?, &HANGZHOU, SOON)
        })?;
        ensure!(tally.is_of(&HANGZHOU), "after its return: {tally}");
        eprintln!("what changed after the return was followed within {took:?}");
        for agent in agents.iter() {
            let log = agent.log();
            ensure_said_once(&log).with_context(|| format!("on {}:\n{log}", agent.node()))?;
        }
        ensure!(agents[1].objects()? == before, "other programs or maps than before");
        Ok(())
    })
}

#[test]
fn a_role_that_is_too_narrow_is_named_and_can_be_widened() -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    within(&plan(), |cluster| {
        let plane = ControlPlane::in_lab(cluster)?;
        plane.ask(async |client| {
            let narrow = reading(&[("", "services"), ("", "nodes")]);
            allow(&client, AGENT, "narrow", &narrow).await?;
            describe(&client, cluster, false).await
        })?;
        let kubeconfig = plane.kubeconfig(AGENT)?;
        let source = ("--kubeconfig", kubeconfig.as_path());
        let mut agent = Agent::prepare_from(&binary, cluster, WORKER, source)?;
        agent.launch()?;
        until("the verb and the resource that are not allowed", SOON, || {
            let log = agent.log();
            let said = log.contains("does not let this agent list endpointslices.discovery.k8s.io")
                && log.contains("allow the verbs list and watch");
            Ok(if said { Ok(()) } else { Err(log) })
        })?;
        // The maps are made while the cluster is being listed.
        let is_attached = agent.pins().join("links").exists();
        ensure!(!is_attached, "programs are attached by half of a cluster");
        plane.ask(async |client| {
            allow(&client, AGENT, "slices", &reading(&[("discovery.k8s.io", "endpointslices")]))
                .await
        })?;
        agent.wait_until_ready().context("after the role was widened")
    })
}

//! Agents follow kube-apiserver and its controllers' EndpointSlices: roles, topology keys, an outage.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::api::{READ, installed, reading};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::client::Client;
use topo_lb_tests::control_plane::{AGENT, ControlPlane};
use topo_lb_tests::kind::{
    BEIJING_CLIENT, CONTROL_PLANE, HANGZHOU, HANGZHOU_CLIENT, POOL, SERVERS, SHANGHAI,
    SHANGHAI_CLIENT, WORKER, WORKER2, plan,
};
use topo_lb_tests::lab::within;
use topo_lb_tests::manifest::{node, service};
use topo_lb_tests::process::printed;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{FOLLOWS, KEYS, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::{until, until_is};

/// The tutorial's Service, the same without a policy, and one with `spec.topologyKeys` or, for
/// servers without that field, the same keys in an annotation.
const UD1: &str = "10.96.3.1";
const UD1_WITHOUT_TOPOLOGY: &str = "10.96.3.2";
const BY_KEYS: &str = "10.96.3.3";

const APP: &str = "united-deployment1";
const OPENYURT: &str = "openyurt.io/topologyKeys";

/// The limit for a controller, or for an agent that waits before it retries.
const SOON: Duration = Duration::from_secs(60);

/// Creates the nodes and Services of the tutorial.
fn describe(plane: &ControlPlane<'_>) -> Result<()> {
    let keys = ["kubernetes.io/hostname", POOL];
    let in_field = plane.has_topology_keys()?;
    let joined = keys.join(",");
    let services = [
        ("svc-ud1", UD1, Some((OPENYURT, "openyurt.io/nodepool"))),
        ("svc-ud1-without-topology", UD1_WITHOUT_TOPOLOGY, None),
        ("svc-by-keys", BY_KEYS, (!in_field).then_some((KEYS, joined.as_str()))),
    ];
    let services = services.into_iter().map(|(name, address, annotation)| {
        let annotations: Vec<_> = annotation.into_iter().collect();
        let mut service = service(name, &[address], &[("", 80, "TCP")], &annotations);
        service["spec"]["selector"] = json!({"app": APP});
        service["spec"]["ports"][0]["targetPort"] = 9376.into();
        if in_field && name == "svc-by-keys" {
            service["spec"]["topologyKeys"] = json!(keys);
        }
        service
    });
    let nodes = [(CONTROL_PLANE, "beijing"), (WORKER, "hangzhou"), (WORKER2, "shanghai")];
    let nodes = nodes.into_iter().map(|(name, pool)| node(name, &[(POOL, pool)]));
    plane.create(nodes.chain(services))
}

/// A client in each pool.
struct Clients {
    beijing: Client,
    hangzhou: Client,
    shanghai: Client,
}

#[test]
fn agents_follow_a_real_api_server_and_traffic_goes_on_without_it() -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    within(&plan(), |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.start_controllers()?;
        describe(&plane)?;
        let kubeconfig = plane.kubeconfig(AGENT)?;
        let source = ("--kubeconfig", kubeconfig.as_path());
        a_narrow_role_is_named_and_can_be_widened(&plane, plane.agent(&binary, WORKER)?)?;

        let _servers = cluster.serve(SERVERS)?;
        let pods: Result<Vec<_>> = SERVERS.into_iter().map(|pod| cluster.pod(pod)).collect();
        plane.run_pods(APP, pods?)?;
        let client = |pod| cluster.pod(pod)?.client();
        let mut clients = Clients {
            beijing: client(BEIJING_CLIENT)?,
            hangzhou: client(HANGZHOU_CLIENT)?,
            shanghai: client(SHANGHAI_CLIENT)?,
        };
        let agents = Agent::start_all_from(&binary, cluster, source, &[])?;
        // By now the controllers have made the slices, or soon will.
        clients.hangzhou.wait_for(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, &SERVERS, SOON)?;
        topology_keys_are_obeyed(&plane, &mut clients)?;
        traffic_goes_on_without_the_api_server(&mut plane, &agents, &mut clients)
    })
}

const POLICIES: &str = "topo-lb.io/v1alpha1";
const DEFINITIONS: [&str; 2] =
    ["topologypolicies.topo-lb.io", "clustertopologypolicies.topo-lb.io"];

#[test]
fn policies_of_a_real_api_server_decide_report_and_outlive_their_definitions() -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    within(&plan(), |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        plane.start_controllers()?;
        describe(&plane)?;
        plane.allow("topo-lb", &installed())?;
        let _servers = cluster.serve(SERVERS)?;
        let pods: Result<Vec<_>> = SERVERS.into_iter().map(|pod| cluster.pod(pod)).collect();
        plane.run_pods(APP, pods?)?;
        let mut client = cluster.pod(HANGZHOU_CLIENT)?.client()?;
        let mut agent = plane.agent(&binary, WORKER)?;
        agent.launch()?;
        agent.wait_until_ready()?;
        // The Service without annotations goes everywhere, until its Namespace has a default.
        client.wait_for(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, &SERVERS, SOON)?;
        let default = json!({"metadata": {"annotations": {KEYS: POOL}}});
        plane.change("Namespace", "default", &default)?;
        client.wait_for(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, &HANGZHOU, FOLLOWS)?;
        // A Service's own annotation is stronger.
        plane.annotate("svc-ud1-without-topology", KEYS, Some("*"))?;
        client.wait_for(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, &SERVERS, FOLLOWS)?;
        plane.annotate("svc-ud1-without-topology", KEYS, None)?;
        client.wait_for(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, &HANGZHOU, FOLLOWS)?;

        define(&plane, &binary)?;
        // The agent looks for the new kinds once a minute.
        plane.create([policy("TopologyPolicy", "everywhere", &["*"])])?;
        client.wait_for(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, &SERVERS, 2 * SOON)?;
        plane.create([policy("ClusterTopologyPolicy", "near", &["kubernetes.io/hostname"])])?;
        // The Service `kubernetes` has no policy of its own, either.
        a_status_says(&plane, "TopologyPolicy", "everywhere", &json!([4, 2]))?;
        a_status_says(&plane, "ClusterTopologyPolicy", "near", &json!([4, 0]))?;
        let wrong = policy("TopologyPolicy", "wrong", &["a b"]);
        let refused = plane.create([wrong]).expect_err("the schema refuses it");
        ensure!(format!("{refused:#}").contains("spec.topologyKeys"), "{refused:#}");

        // One that observes is as if it were not there.
        for (mode, who) in [("observe", &HANGZHOU[..]), ("enforce", &SERVERS)] {
            let patch = Patch::Merge(json!({"spec": {"mode": mode}}));
            plane.with(POLICIES, "TopologyPolicy", async |api| {
                Ok(api.patch("everywhere", &PatchParams::default(), &patch).await.map(drop)?)
            })?;
            client.wait_for(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, who, SOON)?;
        }

        // A deleted policy goes, and so it does not with its definition.
        plane.change("Namespace", "default", &json!({"metadata": {"annotations": null}}))?;
        delete(&plane, POLICIES, "TopologyPolicy", "everywhere")?;
        client.wait_for(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, &HANGZHOU, SOON)?;
        let (tally, ()) = client.call_during(Via::Http, at(UD1_WITHOUT_TOPOLOGY)?, || {
            for name in DEFINITIONS {
                delete(&plane, "apiextensions.k8s.io/v1", "CustomResourceDefinition", name)?;
            }
            agent.wait_for_log("has no clustertopologypolicies.topo-lb.io any more", 2 * SOON)
        })?;
        ensure!(tally.is_of(&HANGZHOU), "while its definition goes: {tally}");
        ensure_said_once(&agent.log())
    })
}

/// Creates the definitions that the agent prints, and waits until they are served.
pub(crate) fn define(plane: &ControlPlane<'_>, binary: &Binary) -> Result<()> {
    let text = printed(&mut binary.command(&["crds"]))?;
    let definitions: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    ensure!(definitions.len() == DEFINITIONS.len(), "{text}");
    plane.create(definitions)?;
    let served = || -> Result<()> {
        for kind in ["TopologyPolicy", "ClusterTopologyPolicy"] {
            let all = async |api: Api<DynamicObject>| {
                Ok(api.list(&ListParams::default()).await.map(drop)?)
            };
            plane.with(POLICIES, kind, all)?;
        }
        Ok(())
    };
    until("a server with the new kinds", SOON, || {
        Ok(served().map_err(|error| format!("{error:#}")))
    })?;
    Ok(())
}

fn policy(kind: &str, name: &str, keys: &[&str]) -> Value {
    json!({"apiVersion": POLICIES, "kind": kind, "metadata": {"name": name},
           "spec": {"topologyKeys": keys}})
}

fn delete(plane: &ControlPlane<'_>, version: &str, kind: &str, name: &str) -> Result<()> {
    plane.with(version, kind, async |api| {
        Ok(api.delete(name, &DeleteParams::default()).await.map(drop)?)
    })
}

/// Waits until the status of a policy has these numbers of Services and of those where it is in force.
fn a_status_says(plane: &ControlPlane<'_>, kind: &str, name: &str, numbers: &Value) -> Result<()> {
    let look = || {
        let get = async |api: Api<DynamicObject>| Ok(api.get(name).await?);
        let status = plane.with(POLICIES, kind, get)?.data["status"].clone();
        Ok(json!([status["services"], status["inForce"]]))
    };
    until_is(&format!("the status of {kind} {name}"), SOON, look, |seen| seen == numbers)?;
    Ok(())
}

fn a_narrow_role_is_named_and_can_be_widened(
    plane: &ControlPlane<'_>,
    mut agent: Agent<'_>,
) -> Result<()> {
    let (slices, others): (Vec<_>, Vec<_>) =
        READ.into_iter().partition(|(_, resource)| *resource == "endpointslices");
    plane.allow("narrow", &reading(&others))?;
    agent.launch()?;
    agent.wait_for_log("does not let topo-lb list endpointslices.discovery.k8s.io", SOON)?;
    agent.wait_for_log("allow the verbs list and watch", SOON)?;
    // The agent makes its maps while it lists the cluster.
    let is_attached = agent.pins().join("links").exists();
    ensure!(!is_attached, "programs are attached by half of a cluster");
    plane.allow("slices", &reading(&slices))?;
    agent.wait_until_ready().context("after the role was widened")
}

/// The demo shows the rest of the tutorial with a real API server.
fn topology_keys_are_obeyed(plane: &ControlPlane<'_>, clients: &mut Clients) -> Result<()> {
    // This node, then this pool, and no other node.
    clients.hangzhou.wait_for(Via::Http, at(UD1)?, &HANGZHOU, FOLLOWS)?;
    clients.shanghai.wait_for(Via::Http, at(BY_KEYS)?, &SHANGHAI, FOLLOWS)?;
    clients.beijing.wait_for(Via::Http, at(BY_KEYS)?, &[], FOLLOWS)?;
    // A node changes its pool.
    plane.relabel(CONTROL_PLANE, POOL, Some("shanghai"))?;
    clients.beijing.wait_for(Via::Http, at(UD1)?, &SHANGHAI, FOLLOWS)?;
    clients.beijing.wait_for(Via::Http, at(BY_KEYS)?, &SHANGHAI, FOLLOWS)?;
    // Without its annotation a Service has no policy.
    plane.annotate("svc-ud1", OPENYURT, None)?;
    clients.hangzhou.wait_for(Via::Http, at(UD1)?, &SERVERS, FOLLOWS)?;
    plane.annotate("svc-ud1", OPENYURT, Some("openyurt.io/nodepool"))?;
    clients.hangzhou.wait_for(Via::Http, at(UD1)?, &HANGZHOU, FOLLOWS)?;
    Ok(())
}

/// Every warning is logged once, however often it occurs, and only by the agent's own code.
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

fn traffic_goes_on_without_the_api_server(
    plane: &mut ControlPlane<'_>,
    agents: &[Agent<'_>],
    clients: &mut Clients,
) -> Result<()> {
    let agent = &agents[1];
    let before = agent.objects()?;
    plane.kill_api_server();
    let (tally, ()) = clients.hangzhou.call_during(Via::Http, at(UD1)?, || {
        agent.wait_for_log("cannot reach the API server at https://172.30.0.254:6443", SOON)?;
        // Makes more connections after the log line.
        clients.beijing.wait_for(Via::Http, at(UD1)?, &SHANGHAI, FOLLOWS).map(drop)
    })?;
    ensure!(tally.is_of(&HANGZHOU), "without the API server: {tally}");

    plane.start_api_server()?;
    plane.relabel(CONTROL_PLANE, POOL, Some("hangzhou"))?;
    let (tally, took) = clients.hangzhou.call_during(Via::Http, at(UD1)?, || {
        clients.beijing.wait_for(Via::Http, at(UD1)?, &HANGZHOU, SOON)
    })?;
    ensure!(tally.is_of(&HANGZHOU), "after its return: {tally}");
    eprintln!("what changed after the return was followed within {took:?}");
    for agent in agents {
        let log = agent.log();
        ensure_said_once(&log).with_context(|| format!("on {}:\n{log}", agent.node()))?;
    }
    ensure!(agent.objects()? == before, "other programs or maps than before");
    Ok(())
}

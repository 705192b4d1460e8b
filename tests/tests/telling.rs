//! What people see at a Service of a real API server: Events of the nodes' agents.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use kube::api::{DynamicObject, ListParams};
use serde_json::{Value, json};
use topo_lb_tests::agent::{Agent, Binary};
use topo_lb_tests::api::{self, READ, allow, change, create, installed, reading};
use topo_lb_tests::cluster::{Cluster, NodePlan};
use topo_lb_tests::control_plane::{AGENT, ControlPlane};
use topo_lb_tests::lab::within;
use topo_lb_tests::requirements;
use topo_lb_tests::scene::{HERE, KEYS, ZONE};
use topo_lb_tests::wait::until;

const SOON: Duration = Duration::from_secs(30);

fn service(name: &str, address: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"clusterIP": address, "ports": [{"name": "http", "port": 80}]},
    })
}

/// An endpoint on a node of another zone.
fn slice(service: &str, version: &str) -> Value {
    let topology = if version == "discovery.k8s.io/v1beta1" {
        json!({"kubernetes.io/hostname": "far"})
    } else {
        Value::Null
    };
    let address: IpAddr = [10, 244, 2, 2].into();
    let mut endpoint = json!({"addresses": [address], "conditions": {"ready": true}});
    if topology.is_null() {
        endpoint["nodeName"] = "far".into();
    } else {
        endpoint["topology"] = topology;
    }
    json!({
        "apiVersion": version, "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("{service}-1"),
                     "labels": {"kubernetes.io/service-name": service}},
        "endpoints": [endpoint], "ports": [{"name": "http", "port": 9376, "protocol": "TCP"}],
    })
}

/// A node with its agent, a Service with a broken policy, and one that is strict and is not served
/// here.
fn play(
    with_events: bool,
    body: impl FnOnce(&Cluster, &mut ControlPlane<'_>, &mut Agent<'_>) -> Result<()>,
) -> Result<()> {
    let binary = Binary::new(requirements::agent()?);
    let plan = [NodePlan { name: HERE, number: 1, pods: vec![("client", 2)] }];
    within(&plan, |cluster| {
        let mut plane = ControlPlane::in_lab(cluster)?;
        let version = plane.slice_version()?;
        plane.ask(async |client| {
            let rules = if with_events { installed() } else { reading(&READ) };
            allow(&client, AGENT, "topo-lb", &rules).await?;
            for (name, zone) in [(HERE, "zone-1"), ("far", "zone-2")] {
                let metadata = json!({"name": name, "labels": {ZONE: zone}});
                let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata});
                create(&client, &node).await?;
            }
            let broken = json!({KEYS: "not a key!"});
            create(&client, &service("broken", "10.96.4.1", &broken)).await?;
            create(&client, &slice("broken", version)).await?;
            create(&client, &service("strict", "10.96.4.2", &json!({KEYS: ZONE}))).await?;
            create(&client, &slice("strict", version)).await?;
            // Nobody serves it anywhere: no news of this node.
            create(&client, &service("idle", "10.96.4.3", &json!({}))).await
        })?;
        let kubeconfig = plane.kubeconfig(AGENT)?;
        let source = ("--kubeconfig", kubeconfig.as_path());
        let mut agent = Agent::prepare_from(&binary, cluster, HERE, source)?;
        // They and default/kubernetes fill the maps.
        agent.set("--max-services", "4");
        agent.resume()?;
        body(cluster, &mut plane, &mut agent)
    })
}

/// The Events of these reasons that are there, with the names of their Services.
fn told(plane: &ControlPlane<'_>) -> Result<Vec<(String, String, Value)>> {
    plane.ask(async |client| {
        let events = api::of(&client, "events.k8s.io/v1", "Event");
        let all = events.list(&ListParams::default()).await.context("cannot list Events")?;
        Ok(all.items.into_iter().filter_map(mine).collect())
    })
}

fn mine(event: DynamicObject) -> Option<(String, String, Value)> {
    let data = event.data;
    (data["reportingController"] == "topo-lb").then(|| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&data["regarding"]["name"]), text(&data["reason"]), data)
    })
}

fn wait_for(plane: &ControlPlane<'_>, service: &str, reason: &str) -> Result<Value> {
    let mut found = None;
    until(&format!("an Event {reason} at {service}"), SOON, || {
        let all = told(plane)?;
        found = all.iter().find(|(name, why, _)| name == service && why == reason).cloned();
        Ok(if found.is_some() { Ok(()) } else { Err(format!("{all:?}")) })
    })?;
    Ok(found.context("it was found")?.2)
}

#[test]
fn a_service_shows_what_a_node_makes_of_it() -> Result<()> {
    play(true, |_, plane, agent| {
        let broken = wait_for(plane, "broken", "InvalidTopologyPolicy")?;
        ensure!(broken["type"] == "Warning" && broken["reportingInstance"] == HERE, "{broken}");
        let note = broken["note"].as_str().unwrap_or_default();
        ensure!(note.starts_with("on node here: ") && note.contains(KEYS), "{note}");
        let strict = wait_for(plane, "strict", "NodeRefused")?;
        let note = strict["note"].as_str().unwrap_or_default();
        ensure!(note.contains("connections to port http are refused: "), "{note}");
        // `kubectl describe` finds Events by the UID of what they are about.
        let uid = plane.ask(async |client| {
            let strict = api::of(&client, "v1", "Service").get("strict").await?;
            strict.metadata.uid.context("every object has a UID")
        })?;
        ensure!(strict["regarding"]["uid"] == uid.as_str(), "{strict}");

        // The same again is the same Event, in a series.
        for keys in [json!(null), json!(ZONE)] {
            let patch = json!({"metadata": {"annotations": {KEYS: keys}}});
            plane.ask(async |client| change(&client, "Service", "strict", &patch).await)?;
            let wanted = if keys.is_null() { "bypass or route" } else { "refuse" };
            until("the change", SOON, || {
                let text = agent.get("/explain?service=default/strict")?.body;
                let refuses = text.contains("\"verdict\": \"refuse\"");
                Ok(if refuses == (wanted == "refuse") { Ok(()) } else { Err(text) })
            })?;
        }
        until("a series", SOON, || {
            let strict = wait_for(plane, "strict", "NodeRefused")?;
            let is_series = strict["series"]["count"].as_u64() == Some(2);
            Ok(if is_series { Ok(()) } else { Err(strict.to_string()) })
        })?;

        // There is room for four.
        plane
            .ask(async |client| create(&client, &service("late", "10.96.4.4", &json!({}))).await)?;
        wait_for(plane, "late", "NoRoomInMaps")?;

        let all = told(plane)?;
        ensure!(all.len() == 3, "each is told once: {all:?}");
        let sent = "topo_lb_kubernetes_events_total{outcome=\"sent\"} 4";
        let text = agent.get("/metrics")?.body;
        ensure!(text.contains(sent), "{text}");
        Ok(())
    })
}

#[test]
fn who_may_not_write_events_is_told_once_and_serves_all_the_same() -> Result<()> {
    play(false, |_, _, agent| {
        until("a warning", SOON, || {
            let log = agent.log();
            let said = log.contains("allow the verbs create and patch on events");
            Ok(if said { Ok(()) } else { Err(log) })
        })?;
        let failed = "topo_lb_kubernetes_events_total{outcome=\"failed\"} 2";
        until("both attempts", SOON, || {
            let text = agent.get("/metrics")?.body;
            Ok(if text.contains(failed) { Ok(()) } else { Err(text) })
        })?;
        let log = agent.log();
        ensure!(log.matches("cannot be told").count() == 1, "{log}");
        let ready = agent.get("/readyz")?;
        ensure!(ready.status == 200, "{ready}");
        Ok(())
    })
}

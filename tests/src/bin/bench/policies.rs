//! Policies for many Services: what a hundred of them cost an agent, and how soon one that selects every
//! Service is in the maps.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use topo_lb_fake_api::{CLUSTER_POLICIES, FakeApi};
use topo_lb_tests::agent::Agent;
use topo_lb_tests::population::{NAMESPACES, Population, SERVICE_PORT};
use topo_lb_tests::records::Records;
use topo_lb_tests::wait::PATIENCE;

use crate::control_plane::{Asks, one_size};
use crate::exchange::{Act, Dialler, PORT, Targets};
use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;

/// How many policies there are.
const POLICIES: u32 = 2 * NAMESPACES;
/// Services beside the population, with two servers that answer.
const DIALLED: u32 = 64;
/// Exchanges of one order to the client.
const BATCH: u32 = 20;
/// From a change of the policy that is in the maps to the next one.
const PAUSE: Duration = Duration::from_secs(1);

const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "*"];
const ANY: [&str; 1] = ["*"];

/// Measures clusters whose Services have no policy of their own.
pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    let (services, endpoints) = effort.of((1_000, 10), (10_000, 10));
    say(&format!(
        "control plane, {services} Services of {endpoints} endpoints, {POLICIES} policies"
    ));
    let population = Population::new(HERE, effort.of(100, 1_000), services, endpoints);
    let population = Population { annotates: false, ..population };
    let figures =
        one_size(ground, effort, &population, Asks::Policies)?.into_iter().map(|figure| {
            let figure = figure.with("services", services).with("endpoints", services * endpoints);
            let figure = figure.with("policies", POLICIES);
            match figure.name.as_str() {
                "rss_mb" if !effort.quick => figure.at_most(42.0),
                "event_to_map_p99_ms" if !effort.quick => figure.p99_at_most(5.0),
                "policy_seconds" | "evacuation_seconds" if !effort.quick => figure.at_most(1.0),
                "policy_failures" | "restart_writes" => figure.at_most(0.0),
                _ => figure,
            }
        });
    Ok(figures.collect())
}

/// The policies, the Namespaces, and Services that answer.
///
/// Three policies select each Service: a TopologyPolicy of its namespace that says no keys, a
/// ClusterTopologyPolicy for that namespace, and a stronger one for all, which decides.
pub(crate) fn objects(ground: &Ground<'_>, population: &Population) -> Result<Vec<Value>> {
    let mut objects = vec![for_all(&ANY)];
    for number in 0..NAMESPACES {
        let namespace = format!("team-{number}");
        objects.push(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": namespace, "labels": {
                "kubernetes.io/metadata.name": namespace, "team": namespace}},
        }));
        objects.push(policy("TopologyPolicy", &namespace, json!({"refusal": "intended"})));
        if number > 0 {
            let spec = json!({
                "namespaceSelector": {"matchLabels": {"team": namespace}}, "topologyKeys": ZONE});
            objects.push(policy("ClusterTopologyPolicy", &namespace, spec));
        }
    }
    let servers = ["a", "b"].map(|pod| ground.cluster.pod(pod).map(|pod| pod.ipv4));
    let servers: Vec<Ipv4Addr> = servers.into_iter().collect::<Result<_>>()?;
    for index in population.services..population.services + DIALLED {
        let mut slice = population.slices(index, |_| true).swap_remove(0);
        slice["ports"][0]["port"] = PORT.into();
        // One in this zone, the other in the next.
        let endpoints = slice["endpoints"].as_array_mut().context("a slice has endpoints")?;
        endpoints.truncate(servers.len());
        for (number, (endpoint, server)) in endpoints.iter_mut().zip(&servers).enumerate() {
            endpoint["addresses"] = json!([server]);
            endpoint["zone"] = format!("zone-{number}").into();
        }
        objects.extend([population.service(index), slice]);
    }
    Ok(objects)
}

/// The ClusterTopologyPolicy that decides for all Services.
fn for_all(keys: &[&str]) -> Value {
    policy("ClusterTopologyPolicy", "all", json!({"precedence": 10, "topologyKeys": keys}))
}

/// A policy; one of a namespace has the same name as that.
pub(crate) fn policy(kind: &str, name: &str, spec: Value) -> Value {
    let mut policy = json!({
        "apiVersion": "topo-lb.io/v1alpha1", "kind": kind, "spec": spec,
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z"},
    });
    if kind == "TopologyPolicy" {
        policy["metadata"]["namespace"] = name.into();
    }
    policy
}

/// Changes the policy for all Services again and again, while a client connects all the time.
pub(crate) fn flip(
    ground: &Ground<'_>,
    effort: Effort,
    agent: &Agent<'_>,
    server: &FakeApi,
    population: &Population,
) -> Result<Vec<Figure>> {
    let first = SocketAddr::from((Population::frontend(population.services), SERVICE_PORT));
    let targets = Targets::addresses(first, DIALLED);
    let mut dialler = ground.inside("client")?;
    ground.reach(&mut dialler, targets)?;
    let done = AtomicBool::new(false);
    let (seconds, failures) = thread::scope(|scope| {
        let failures = scope.spawn(|| connect_until(&done, &mut dialler, targets));
        // No Service has all its endpoints in this zone, so each is changed.
        let follow = |turn: usize| {
            let keys: &[&str] = if turn.is_multiple_of(2) { &ZONE } else { &ANY };
            server.change(CLUSTER_POLICIES, "MODIFIED", for_all(keys));
        };
        let evacuation = json!({"evacuate": "topology.kubernetes.io/zone=zone-0"});
        let evacuate = |turn: usize| {
            let kind = if turn.is_multiple_of(2) { "ADDED" } else { "DELETED" };
            let policy = policy("ClusterTopologyPolicy", "evacuate", evacuation.clone());
            server.change(CLUSTER_POLICIES, kind, policy);
        };
        let all: Vec<u32> = (0..population.services).collect();
        let is_left = |service: &u32| {
            let slices = population.slices(*service, |_| true);
            let mut zones = slices.iter().flat_map(|it| it["endpoints"].as_array()).flatten();
            let is_there = |one: &Value| one["zone"] == "zone-0";
            zones.clone().any(is_there) && !zones.all(is_there)
        };
        let some: Vec<u32> = all.iter().copied().filter(is_left).collect();
        let seconds = flips(effort, agent, &all, &follow);
        let seconds = seconds.and_then(|it| Ok((it, flips(effort, agent, &some, &evacuate)?)));
        done.store(true, Ordering::Relaxed);
        (seconds, failures.join().unwrap_or(f64::INFINITY))
    });
    let (seconds, evacuation) = seconds?;
    Ok(vec![
        Figure::new("policy_seconds", "s", &seconds),
        Figure::new("evacuation_seconds", "s", &evacuation),
        Figure::single("policy_failures", "failures", failures),
    ])
}

/// How many exchanges fail until `done`.
fn connect_until(done: &AtomicBool, dialler: &mut Dialler, targets: Targets) -> f64 {
    let mut failures = 0.0;
    while !done.load(Ordering::Relaxed) {
        // An order ends with its first failure.
        if let Err(error) = dialler.times(Act::Exchange, targets, BATCH) {
            eprintln!("{error:#}");
            failures += 1.0;
        }
    }
    failures
}

/// The seconds of each change until the last of these Services has another record.
fn flips(
    effort: Effort,
    agent: &Agent<'_>,
    services: &[u32],
    change: &dyn Fn(usize),
) -> Result<Sample> {
    let records = Records::open(agent)?;
    let mut seconds = Sample::default();
    for turn in 0..effort.of(2, 20) {
        let before: Vec<u32> =
            services.iter().map(|&service| records.of(service)).collect::<Result<_>>()?;
        let told = Instant::now();
        change(turn);
        for (&service, before) in services.iter().zip(before) {
            while records.of(service)? == before {
                ensure!(
                    told.elapsed() < PATIENCE,
                    "a policy for all Services did not change the record of Service {service} in {PATIENCE:?}"
                );
                thread::sleep(Duration::from_micros(200));
            }
        }
        seconds.add(told.elapsed().as_secs_f64());
        thread::sleep(PAUSE);
    }
    Ok(seconds)
}

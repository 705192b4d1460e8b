//! How soon after its start the agent serves, with a real API server and many Services.

use std::env;
use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Client;
use serde_json::Value;
use topo_lb_tests::agent::Agent;
use topo_lb_tests::api::{READ, allow, create, reading};
use topo_lb_tests::control_plane::{AGENT, ASSETS, ControlPlane};
use topo_lb_tests::kubernetes_1_20;
use topo_lb_tests::population::{Population, SERVICE_PORT};

use crate::exchange::Targets;
use crate::ground::{Effort, Ground, HERE};
use crate::result::Figure;
use crate::sample::Sample;

/// Concurrent requests while the API server is filled.
const AT_ONCE: usize = 16;

/// Skipped unless the environment names a control plane.
pub(crate) fn measure(
    ground: &Ground<'_>,
    effort: Effort,
    say: &dyn Fn(&str),
) -> Result<Vec<Figure>> {
    if env::var_os(ASSETS).is_none_or(|folder| folder.is_empty()) {
        say(&format!("the real API server is left out: {ASSETS} is not set"));
        return Ok(Vec::new());
    }
    let services = effort.of(100, 10_000);
    let population = ground.population(services, ["a", "b"])?;
    say(&format!("a real API server is filled with {services} Services"));
    let plane = ControlPlane::in_lab(ground.cluster)?;
    let old = plane.has_topology_keys()?;
    plane.ask(async |client| {
        allow(&client, AGENT, "topo-lb", &reading(&READ)).await?;
        fill(&client, &population, old).await
    })?;
    say(&format!("first contact, {services} Services of 2 endpoints"));
    let (mut started, mut spent) = (Sample::default(), Sample::default());
    let mut dialler = ground.inside("client")?;
    let last = Targets::one(SocketAddr::from((Population::frontend(services - 1), SERVICE_PORT)));
    let kubeconfig = plane.kubeconfig(AGENT)?;
    for _ in 0..effort.of(1, 5) {
        let source = ("--kubeconfig", kubeconfig.as_path());
        let mut agent = Agent::prepare_from(&ground.binary, ground.cluster, HERE, source)?;
        let begun = Instant::now();
        agent.launch()?;
        ground.reach(&mut dialler, last)?;
        started.add(begun.elapsed().as_secs_f64());
        agent.wait_until_ready()?;
        spent.add(crate::control_plane::processor_seconds(&agent)?);
    }
    let with = |figure: Figure| {
        figure
            .with("services", services)
            .with("endpoints", 2 * services)
            .with("server", "kube-apiserver")
    };
    let started = with(Figure::new("start_seconds", "s", &started));
    let is_promised = services == 10_000;
    Ok(vec![
        if is_promised { started.at_most(1.0) } else { started },
        with(Figure::new("start_cpu_seconds", "s", &spent)),
    ])
}

/// Creates all objects of the population.
async fn fill(client: &Client, population: &Population, old: bool) -> Result<()> {
    let objects = population.objects().map(|it| if old { kubernetes_1_20::slice(it) } else { it });
    stream::iter(objects)
        .map(|object| async move { create(client, &new(object)).await })
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await
        .context("cannot fill the API server")
}

/// Moves an object to `default`, and removes the fields that only the server sets.
fn new(mut object: Value) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        for field in
            ["resourceVersion", "uid", "creationTimestamp", "generation", "ownerReferences"]
        {
            metadata.remove(field);
        }
        if metadata.contains_key("namespace") {
            metadata.insert("namespace".to_owned(), "default".into());
        }
    }
    object
}

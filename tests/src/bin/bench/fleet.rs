//! A zone leaves a cluster of a hundred nodes, and comes back. Runs only the agents' pure part.

use std::num::NonZero;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use topo_lb_core::cluster::service::PolicySources;
use topo_lb_core::cluster::{Change, ClusterTopologyPolicy, PolicyId, TopologyPolicy, Update};
use topo_lb_tests::population::Population;
use topo_lb_tests::pure_agent::PureAgent;

use crate::ground::Effort;
use crate::result::Figure;
use crate::sample::Sample;

/// As many zones as the population has.
const ZONE: &str = "topology.kubernetes.io/zone=zone-1";

/// The seconds from the word until the last of all agents has planned it, on all cores of this machine.
pub(crate) fn measure(effort: Effort, say: &dyn Fn(&str)) -> Result<Vec<Figure>> {
    let (nodes, services, endpoints) = effort.of((10, 50, 10), (100, 1_000, 30));
    say(&format!(
        "{nodes} agents, {services} Services of {endpoints} endpoints, a zone that leaves"
    ));
    let population = Population::new("node-of-the-simulation", nodes, services, endpoints);
    let mut agents = Vec::new();
    for number in 0..nodes {
        let node = population.node(number);
        let name = node["metadata"]["name"].as_str().context("a Node has a name")?;
        let mut agent = PureAgent::new(name);
        agent.follow(population.updates()?);
        agents.push(agent);
    }
    let agents = Mutex::new(agents);
    let (mut all, mut least) = (Sample::default(), usize::MAX);
    for turn in 0..effort.of(2, 10) {
        let begun = Instant::now();
        least = least.min(tell(&agents, &word(turn % 2 == 0)));
        all.add(begun.elapsed().as_secs_f64());
    }
    ensure!(least > 0, "an agent had nothing to write");
    let figure = Figure::new("evacuation_fleet_seconds", "s", &all);
    let figure =
        figure.with("nodes", nodes).with("services", services).with("endpoints", endpoints);
    Ok(vec![if effort.quick { figure } else { figure.at_most(2.0) }])
}

/// An evacuation, or its end.
fn word(leaves: bool) -> Update {
    let id = PolicyId { namespace: "".into(), name: "evacuate".into() };
    if !leaves {
        return Update::ClusterTopologyPolicy(Change::Deleted(id));
    }
    let policy = PolicySources { evacuate: Some(ZONE.into()), ..PolicySources::default() };
    let policy = TopologyPolicy { id, policy: Arc::new(policy), ..TopologyPolicy::default() };
    Update::ClusterTopologyPolicy(Change::Applied(ClusterTopologyPolicy(policy)))
}

/// Has all agents follow an update. Returns the fewest writes of one.
fn tell(agents: &Mutex<Vec<PureAgent>>, update: &Update) -> usize {
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let done = Mutex::new((Vec::new(), usize::MAX));
    let next = || agents.lock().ok()?.pop();
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(mut agent) = next() {
                    let writes = agent.follow([update.clone()]);
                    if let Ok(mut done) = done.lock() {
                        done.1 = writes.min(done.1);
                        done.0.push(agent);
                    }
                }
            });
        }
    });
    let (all, least) = done.into_inner().unwrap_or_default();
    if let Ok(mut agents) = agents.lock() {
        *agents = all;
    }
    least
}

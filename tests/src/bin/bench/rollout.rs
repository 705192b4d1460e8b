//! A rolling update of a large Service in a large cluster. Runs only the agents' pure part.

use std::net::Ipv4Addr;
use std::time::Instant;

use anyhow::Result;
use serde_json::{Value, json};
use topo_lb_tests::population::{Population, update};
use topo_lb_tests::pure_agent::PureAgent;

use crate::ground::Effort;
use crate::result::Figure;
use crate::sample::Sample;

const NODES: u32 = 5_000;

/// Replaces every pod of Services of several sizes. Measures some nodes; the figures are for all.
pub(crate) fn measure(effort: Effort, say: &dyn Fn(&str)) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for &pods in effort.of(&[20, 40][..], &[100, 300, 1_000]) {
        say(&format!("rolling update of {pods} pods on {NODES} nodes"));
        let sampled = effort.of(2, 12);
        let mut seconds = Sample::default();
        let mut events = 0;
        for number in 0..sampled {
            let here = number * (NODES / sampled);
            let (spent, seen) = one_node(here, pods)?;
            seconds.add(spent);
            events = seen;
        }
        let with = |figure: Figure| {
            figure
                .with("nodes", NODES)
                .with("pods", pods)
                .with("events", events)
                .with("nodes_simulated", sampled)
        };
        let each = seconds.median() * 1e3 / f64::from(events);
        figures.push(with(Figure::single("rollout_event_ms", "ms", each)));
        figures.push(with(Figure::new("rollout_node_seconds", "s", &seconds)));
        let all = seconds.median() * f64::from(NODES);
        figures.push(with(Figure::single("rollout_cluster_seconds", "s", all)));
    }
    Ok(figures)
}

/// The seconds that the agent of one node spends, and the number of its events.
fn one_node(here: u32, pods: u32) -> Result<(f64, u32)> {
    let population = Population::new("node-of-the-simulation", NODES, 1, pods);
    let node = population.node(here);
    let mut agent = PureAgent::new(node["metadata"]["name"].as_str().unwrap_or_default());
    agent.follow(population.updates()?);

    let mut slices = population.slices(0, |_| true);
    let (mut spent, mut events) = (0.0, 0);
    for pod in 0..pods {
        let mut rest = pod as usize;
        let of_it = |slice: &&mut Value| {
            let length = slice["endpoints"].as_array().map_or(0, Vec::len);
            let is_its = rest < length;
            if !is_its {
                rest -= length;
            }
            is_its
        };
        let Some(slice) = slices.iter_mut().find(of_it) else { continue };
        // The old pod terminates; its successor has another address; the successor becomes ready.
        for step in 0..3 {
            let endpoint = &mut slice["endpoints"][rest];
            let is_ready = step == 2;
            endpoint["conditions"] =
                json!({"ready": is_ready, "serving": is_ready, "terminating": step == 0});
            if step == 1 {
                let first = Ipv4Addr::new(12, 0, 0, 0).to_bits();
                endpoint["addresses"] = json!([Ipv4Addr::from_bits(first + pod)]);
            }
            let update = update(slice.clone())?;
            let begun = Instant::now();
            agent.follow([update]);
            spent += begun.elapsed().as_secs_f64();
            events += 1;
        }
    }
    Ok((spent, events))
}

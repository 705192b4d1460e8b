//! Nodes get other labels, go and come back, and are watched only while a Service needs it.

use std::time::Duration;

use anyhow::{Result, ensure};
use topo_lb_tests::kind::POOL;
use topo_lb_tests::scene::{FOLLOWS, HERE, KEYS};
use topo_lb_tests::wait::patient;

use super::town::{A, B, SOFT, THERE, Town, WEB, node, service};

pub(super) fn nodes_move(town: &mut Town<'_>) -> Result<()> {
    let (a, b) = (&A[..2], &B[..2]);
    let all = [a, b].concat();
    town.run("web", &all)?;
    town.plane.create([
        service("web", WEB, "web", Some(POOL)),
        service("soft", SOFT, "web", Some(&format!("{POOL},*"))),
    ])?;
    town.answered_by(WEB, a)?;
    town.answered_by(SOFT, a)?;
    town.answered_during(SOFT, |town| {
        // No controller takes part, only the request, the watch and the maps.
        let mut slowest = Duration::ZERO;
        let moves: [(&str, &str, &[&str]); 4] =
            [(THERE, "west", &all), (THERE, "east", a), (HERE, "east", &all), (HERE, "west", a)];
        for (node, pool, pods) in moves {
            town.plane.relabel(node, POOL, Some(pool))?;
            slowest = slowest.max(town.answered_by(WEB, pods)?);
        }
        eprintln!("a relabelled node was followed within {slowest:?}");
        ensure!(slowest < patient(FOLLOWS), "it took {slowest:?}");

        // This node is in no pool.
        town.plane.relabel(HERE, POOL, None)?;
        town.answered_by(WEB, &[])?;
        town.answered_by(SOFT, &all)?;
        town.plane.relabel(HERE, POOL, Some("west"))?;
        town.answered_by(WEB, a)?;

        // A node is deleted, and a node of the same name joins another pool.
        town.plane.delete("Node", &[THERE])?;
        town.answered_by(WEB, a)?;
        town.plane.create([node(THERE, "west")])?;
        town.answered_by(WEB, &all).map(drop)
    })
}

pub(super) fn nodes_are_watched(town: &mut Town<'_>) -> Result<()> {
    let (a, b) = (&A[..2], &B[..2]);
    let all = [a, b].concat();
    town.run("web", &all)?;
    town.plane.create([service("web", WEB, "web", None)])?;
    town.answered_by(WEB, &all)?;
    ensure!(town.known_nodes()? == 1, "no Service reads labels of Nodes");
    town.answered_during(WEB, |town| {
        for _ in 0..2 {
            // A new Service follows its key from its first connection on.
            town.plane.create([service("soft", SOFT, "web", Some(&format!("{POOL},*")))])?;
            town.answered_by(SOFT, a)?;
            ensure!(town.known_nodes()? == 2, "a Service reads the label {POOL} of all Nodes");
            // An existing Service gets a key.
            town.plane.annotate("web", KEYS, Some(POOL))?;
            town.answered_by(WEB, a)?;
            town.plane.relabel(THERE, POOL, Some("west"))?;
            town.answered_by(WEB, &all)?;
            town.plane.relabel(THERE, POOL, Some("east"))?;
            town.answered_by(WEB, a)?;
            // No Service reads the label any more. The agent keeps watching all Nodes for some
            // minutes, but after a restart only its own.
            town.plane.annotate("web", KEYS, None)?;
            town.plane.delete("Service", &["soft"])?;
            town.answered_by(WEB, &all)?;
            town.agent.stop()?;
            town.agent.resume()?;
            town.answered_by(WEB, &all)?;
            ensure!(town.known_nodes()? == 1, "no Service reads labels of Nodes any more");
        }
        // The key is set while no agent runs: the agent must not decide without all Nodes' labels.
        town.agent.stop()?;
        town.plane.annotate("web", KEYS, Some(POOL))?;
        town.agent.resume()?;
        town.answered_by(WEB, a)?;
        ensure!(town.known_nodes()? == 2, "a Service reads the label {POOL} of all Nodes");
        Ok(())
    })
}

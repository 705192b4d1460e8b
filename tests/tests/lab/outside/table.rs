//! The masquerade table beside others who write tables.

use anyhow::{Result, ensure};
use topo_lb_tests::foreign_table::ForeignTable;
use topo_lb_tests::scene::{FOLLOWS, HERE};

use super::scene::{idle, nft, play_with, tables, wait_at_each, wait_for_tables};

#[test]
fn a_masquerade_table_that_somebody_removes_is_put_back_and_said_once() -> Result<()> {
    play_with("nftables", |scene, client| {
        scene.set_endpoints("web", &["b"])?;
        wait_at_each(client, &["b"])?;
        let before = tables(scene)?;
        ensure!(before.starts_with("table inet topo-lb {"), "{before}");
        for change in ["delete table inet topo-lb", "flush ruleset", "flush table inet topo-lb"] {
            nft(scene, change)?;
            wait_for_tables(scene, &before)?;
            wait_at_each(client, &["b"])?;
        }
        let log = scene.agent.log();
        let said = log.lines().filter(|line| {
            line.contains("WARN") && line.contains("the nftables table inet topo-lb was removed")
        });
        ensure!(said.count() == 1, "{log}");
        Ok(())
    })
}

#[test]
fn a_table_that_cannot_be_written_leaves_the_agent_running_and_not_ready() -> Result<()> {
    idle(|scene| {
        let table = ForeignTable::make(scene.cluster, scene.cluster.node(HERE)?)?;
        scene.agent.set("--masquerade", "nftables");
        scene.agent.resume()?;
        let sentence = "have no answers, as the nftables table inet topo-lb cannot be written";
        scene.agent.wait_for_answer("/readyz", FOLLOWS, |answer| {
            answer.status == 503 && answer.body.contains(sentence)
        })?;
        // The endpoint of this node needs no table.
        let mut client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        scene.set_endpoints("web", &["a"])?;
        wait_at_each(&mut client, &["a"])?;
        table.remove()?;
        scene.agent.wait_for_answer("/readyz", FOLLOWS, |answer| answer.status == 200)?;
        scene.set_endpoints("web", &["b"])?;
        wait_at_each(&mut client, &["b"])
    })
}

#[test]
fn while_the_table_cannot_be_written_tc_goes_on() -> Result<()> {
    play_with("auto", |scene, client| {
        scene.set_endpoints("web", &["b"])?;
        wait_at_each(client, &["b"])?;
        let table = ForeignTable::make(scene.cluster, scene.cluster.node(HERE)?)?;
        let node = scene.cluster.node_netns(HERE)?;
        node.set(&[("ipv4/ip_local_port_range", "1024 65000")])?;
        let sentence = "but the nftables table inet topo-lb cannot be written";
        scene.agent.wait_for_answer("/readyz", FOLLOWS, |answer| {
            answer.status == 503 && answer.body.contains(sentence)
        })?;
        wait_at_each(client, &["b"])?;
        scene.agent.stop()?;
        scene.agent.resume()?;
        scene.agent.wait_for_answer("/readyz", FOLLOWS, |answer| {
            answer.status == 503 && answer.body.contains(sentence)
        })?;
        wait_at_each(client, &["b"])?;
        table.remove()?;
        scene.agent.wait_for_answer("/readyz", FOLLOWS, |answer| answer.status == 200)?;
        wait_at_each(client, &["b"])
    })
}

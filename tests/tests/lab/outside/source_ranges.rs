//! `loadBalancerSourceRanges`.

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use topo_lb_common::maps;
use topo_lb_tests::scene::{ALL, FOLLOWS, Scene, at};
use topo_lb_tests::traffic::Via;
use topo_lb_tests::wait::until;

use super::scene::{BALANCER, NODE, expect_dropped, play, set, wait_at_each};

/// Lets the client outside dial both load balancer IPs from these sources.
fn dial_from(scene: &Scene<'_>, sources: [&str; 2]) -> Result<()> {
    let mut lines = Vec::new();
    for ((source, balancer), node) in sources.into_iter().zip(BALANCER).zip(NODE) {
        let length = if source.contains(':') { 128 } else { 32 };
        lines.push(format!("address replace {source}/{length} dev br0 nodad"));
        lines.push(format!("route replace {balancer} via {node} src {source}"));
    }
    scene.cluster.fabric().ip(&lines)
}

/// Waits until the maps of source ranges have so many entries, of both families together.
pub(super) fn wait_for_sources(scene: &Scene<'_>, wanted: usize) -> Result<()> {
    until("the source ranges", FOLLOWS, || {
        let mut found = 0;
        for map in [maps::SOURCES4, maps::SOURCES6] {
            found += scene.dump(map)?.as_array().context("a list")?.len();
        }
        Ok(if found == wanted { Ok(()) } else { Err(found) })
    })?;
    Ok(())
}

#[test]
fn only_allowed_sources_may_dial_a_load_balancer_and_anybody_a_node_port() -> Result<()> {
    const ALLOWED: [&str; 2] = ["198.51.100.77", "2001:db8:100::77"];
    const DENIED: [&str; 2] = ["192.0.2.77", "2001:db8:2::77"];
    play(|scene, client| {
        dial_from(scene, DENIED)?;
        client.wait_for(Via::Http, at(BALANCER[0])?, &ALL, FOLLOWS)?;
        client.wait_for(Via::Http, at(BALANCER[1])?, &ALL, FOLLOWS)?;

        let ranges = json!(["198.51.100.0/24", "2001:db8:100::/48"]);
        scene.change(|it| set(it, "loadBalancerSourceRanges", ranges))?;
        // Each of two ports has an entry that denies and one that allows.
        wait_for_sources(scene, 8)?;
        expect_dropped(scene, at(BALANCER[0])?)?;
        expect_dropped(scene, at(BALANCER[1])?)?;
        wait_at_each(client, &ALL)?;
        dial_from(scene, ALLOWED)?;
        client.expect(Via::Http, at(BALANCER[0])?, &ALL)?;
        client.expect(Via::Http, at(BALANCER[1])?, &ALL)?;
        client.expect(Via::UdpConnected, at(BALANCER[0])?, &ALL)?;

        // The next agent reads from the maps what an agent left that was killed.
        scene.agent.kill();
        let ranges = json!(["192.0.2.0/24", "203.0.113.0/24", "2001:db8:2::/48"]);
        scene.change(|it| set(it, "loadBalancerSourceRanges", ranges))?;
        scene.agent.resume()?;
        wait_for_sources(scene, 10)?;
        expect_dropped(scene, at(BALANCER[0])?)?;
        expect_dropped(scene, at(BALANCER[1])?)?;
        dial_from(scene, DENIED)?;
        client.expect(Via::Http, at(BALANCER[0])?, &ALL)?;

        scene.change(|it| set(it, "loadBalancerSourceRanges", Value::Null))?;
        wait_for_sources(scene, 0)?;
        dial_from(scene, ALLOWED)?;
        client.expect(Via::Http, at(BALANCER[0])?, &ALL)
    })
}

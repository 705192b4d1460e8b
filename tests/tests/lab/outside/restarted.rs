//! Agents that are killed, replaced and removed.

use std::net::SocketAddr;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::maps::{Array, Map, MapData};
use topo_lb_common::device::Quota;
use topo_lb_common::maps;
use topo_lb_common::members::Member;
use topo_lb_common::selection::HASHED;
use topo_lb_tests::client::Client;
use topo_lb_tests::traffic::Via;

use super::scene::{WEB, idle, play, wait_at_each};

/// Whether `quota` tells programs to leave connections half-open.
fn keeps_half_open(pins: &Path) -> Result<bool> {
    let quota = Map::Array(MapData::from_pin(pins.join(maps::QUOTA))?);
    let [.., until] = Array::<_, [u32; size_of::<Quota>() / 4]>::try_from(quota)?.get(&0, 0)?;
    Ok(until != 0)
}

#[test]
fn connections_outlive_an_agent_that_is_killed_and_the_next_one_goes_on() -> Result<()> {
    play(|scene, client| {
        let mut sockets = Vec::new();
        for pods in [["a"], ["b"]] {
            scene.set_endpoints("web", &pods)?;
            wait_at_each(client, &pods)?;
            for (via, address) in WEB {
                let to: SocketAddr = address.parse()?;
                let socket = client.open(via, to)??;
                let reply = client.ask(socket, Some(to))??;
                ensure!(reply.pod == pods[0], "{reply:?}");
                // A datagram socket follows the Service's endpoints.
                if via == Via::Http {
                    sockets.push((socket, to, pods[0]));
                }
            }
        }
        scene.set_endpoints("web", &["a", "b"])?;
        wait_at_each(client, &["a", "b"])?;
        let all_go_on = |client: &mut Client, when: &str| -> Result<()> {
            for &(socket, to, pod) in &sockets {
                let reply = client.ask(socket, Some(to))?;
                let reply = reply.with_context(|| format!("{to} {when}, by {pod}"))?;
                ensure!(reply.pod == pod, "{reply:?}");
            }
            Ok(())
        };
        all_go_on(client, "before")?;
        scene.agent.kill();
        all_go_on(client, "while no agent runs")?;
        wait_at_each(client, &["a", "b"])?;
        let tcp = WEB[0].1.parse()?;
        let (tally, ()) = client.call_during(Via::Http, tcp, || scene.agent.resume())?;
        ensure!(tally.answered() == tally.requests, "while the next agent starts: {tally}");
        all_go_on(client, "with the next agent")?;
        scene.agent.stop()?;
        // Its maps do not fit: they are made anew.
        scene.agent.set("--max-connections", "32768");
        let pins = scene.agent.pins().to_owned();
        let is_over = AtomicBool::new(false);
        let (called, kept) = thread::scope(|scope| {
            let watch = scope.spawn(|| {
                let mut kept = false;
                while !is_over.load(Ordering::Relaxed) {
                    kept |= keeps_half_open(&pins).unwrap_or_default();
                    thread::sleep(Duration::from_millis(1));
                }
                kept
            });
            let called = client.call_during(Via::Http, tcp, || scene.agent.resume());
            is_over.store(true, Ordering::Relaxed);
            (called, watch.join().unwrap_or_else(|panic| resume_unwind(panic)))
        });
        let (tally, ()) = called?;
        ensure!(tally.answered() == tally.requests, "while the maps are replaced: {tally}");
        // A connection that is established between two devices has answers by both sets of programs.
        ensure!(kept, "connections were established while devices had programs of two sets");
        ensure!(!keeps_half_open(&pins)?, "no connection is established any more");
        ensure!(scene.agent.log().contains("the hooks have the new maps"), "no maps were replaced");
        all_go_on(client, "with new maps")?;
        // Also a connection that is opened meanwhile, at any moment, goes on.
        scene.agent.stop()?;
        scene.agent.set("--max-connections", "65536");
        let mut meanwhile = Vec::new();
        thread::scope(|scope| -> Result<()> {
            let agent = &mut scene.agent;
            let starting = scope.spawn(move || agent.resume());
            while !starting.is_finished() {
                meanwhile.push(client.open(Via::Http, tcp)??);
                thread::sleep(Duration::from_millis(10));
            }
            starting.join().unwrap_or_else(|panic| resume_unwind(panic))
        })?;
        for (count, &socket) in meanwhile.iter().enumerate() {
            let reply = client.ask(socket, Some(tcp))?;
            let all = meanwhile.len();
            reply.with_context(|| format!("connection {count} of {all} opened meanwhile"))?;
        }
        wait_at_each(client, &["a", "b"])
    })
}

#[test]
fn an_agent_reads_tables_and_the_nodes_of_members_back_and_writes_nothing() -> Result<()> {
    idle(|scene| {
        scene.agent.set("--direct-return", "auto");
        scene.agent.set("--max-endpoints", "16384");
        scene.agent.resume()?;
        let text = scene.dump("records4")?.to_string();
        ensure!(text.contains(&format!("\"spill\":{HASHED}")), "no table: {text}");
        let members = scene.dump("members4")?;
        let states = members.as_array().context("members")?.iter();
        let states: Vec<_> =
            states.filter_map(|it| it["formatted"]["value"]["state"].as_u64()).collect();
        let tagged = states.iter().filter(|state| Member::node(**state as u32) != 0).count();
        ensure!(tagged > 0 && tagged < states.len(), "{members}");
        scene.agent.kill();
        scene.agent.resume()?;
        let metrics = scene.agent.get("/metrics")?;
        let writes = metrics.sample("topo_lb_map_writes_total").context("writes are counted")?;
        ensure!(writes == 0.0, "{writes} writes, though nothing has changed");
        Ok(())
    })
}

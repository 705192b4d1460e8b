//! A host with a /64 of its own, and another host that it cannot starve.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::flood::flood;
use topo_lb_tests::frame::{Tcp, tcp};
use topo_lb_tests::scene::{FOLLOWS, Scene, put_endpoints};
use topo_lb_tests::wait::patient;

use super::budgets::{DEVICE, to_node};
use super::dialling::{
    ask, client6, close, dial, dial_within, expect_no_more_than_dropped, own_networks, sent_again,
};
use super::scene::{WEB, idle, packets};

/// The networks of both hosts. SYN-ACKs to the one that floods reach nobody, and nobody resets their connections.
const FLOODER: &str = "2001:db8:bad::/64";
const ATTACKER: u16 = 0xbad;
const VICTIM: u16 = 0x600d;
/// `--max-connections`: a client may have a quarter open.
const ROOM: usize = 4_096;

/// The node port of `web` by IPv6, with an agent that serves it. Its endpoint is on this node, where no source NAT takes
/// the source port of an opening again that its endpoint still knows.
fn play(body: impl FnOnce(&mut Scene<'_>, SocketAddr) -> Result<()>) -> Result<()> {
    idle(|scene| {
        put_endpoints(&mut scene.manifests, scene.cluster, "web", &["a"])?;
        scene.manifests.write()?;
        scene.agent.set("--max-connections", ROOM.to_string());
        scene.agent.resume()?;
        own_networks(scene)?;
        let mut client = scene.cluster.guest("outside", scene.cluster.fabric())?;
        client.wait_for(WEB[3].0, WEB[3].1.parse()?, &["a"], FOLLOWS)?;
        scene.wait_for_quota()?;
        body(scene, WEB[3].1.parse()?)
    })
}

/// The victim dials once: how often TCP had to send its SYN again.
fn dial_once(to: SocketAddr) -> Result<u64> {
    let stream = dial(client6(VICTIM, 1), to)?;
    let again = sent_again(&stream)?.into();
    ask(&stream)?;
    close(stream)?;
    Ok(again)
}

#[test]
fn syns_of_a_whole_64_take_nothing_of_another_host() -> Result<()> {
    const SYNS: u64 = 60_000;
    play(|scene, to| {
        let fabric = scene.cluster.fabric();
        fabric.ip(&[format!("route add blackhole {FLOODER}")])?;
        let network: Ipv6Addr = FLOODER.trim_end_matches("/64").parse()?;
        let syns: Vec<_> = (0..SYNS / 4)
            .map(|_| {
                let host = Ipv6Addr::from_bits(network.to_bits() | u128::from(fastrand::u64(..)));
                let from = SocketAddr::new(host.into(), fastrand::u16(1_024..));
                to_node(tcp(from, to, Tcp::Syn(fastrand::u32(..))))
            })
            .collect();
        let dropped = scene.cluster.dropped_in_queues()?;
        let done = AtomicBool::new(false);
        let (mut dialled, mut again) = (0, 0);
        let sent = thread::scope(|scope| {
            let attack = scope.spawn(|| -> Result<u64> {
                let (end, mut sent) = (Instant::now() + patient(Duration::from_secs(20)), 0);
                while sent < SYNS && Instant::now() < end {
                    sent += flood(fabric, DEVICE, &syns, Duration::from_secs(1))?;
                }
                done.store(true, Ordering::Relaxed);
                Ok(sent)
            });
            while !done.load(Ordering::Relaxed) && !attack.is_finished() {
                fabric.run(|| {
                    for _ in 0..20 {
                        dialled += 1;
                        again += dial_once(to)?;
                    }
                    Ok(())
                })?;
            }
            attack.join().expect("no panic")
        })?;
        println!("{sent} SYNs; the other host dialled {dialled} times and sent {again} SYNs again");
        ensure!(sent >= SYNS, "only {sent} SYNs");
        expect_no_more_than_dropped(scene.cluster, again, dropped)?;
        for outcome in ["limited", "no_port", "table_full"] {
            let refused = packets(scene, outcome)?;
            ensure!(refused == 0, "{outcome}: {refused}");
        }
        Ok(())
    })
}

#[test]
fn connections_of_a_whole_64_have_one_quota() -> Result<()> {
    play(|scene, to| {
        let fabric = scene.cluster.fabric();
        let before = packets(scene, "limited")?;
        let held = fabric.run(|| {
            let mut held = Vec::new();
            while held.len() < ROOM {
                let from = client6(ATTACKER, held.len() as u64 + 1);
                match dial_within(from, to, patient(Duration::from_millis(500)))? {
                    Ok(stream) => held.push(stream),
                    Err(error) if error.kind() == ErrorKind::TimedOut => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let dropped = scene.cluster.dropped_in_queues()?;
            let again: u64 = (0..100).map(|_| dial_once(to)).sum::<Result<_>>()?;
            expect_no_more_than_dropped(scene.cluster, again, dropped)
                .context("of the other host")?;
            Ok(held)
        })?;
        ensure!(packets(scene, "limited")? > before, "nothing was refused");
        // Of those that are established while the agent counts, some may count twice or not at all until it counts again.
        let has = held.len();
        ensure!(has < ROOM / 2, "{has} connections, where a quarter of {ROOM} are right");
        Ok(())
    })
}

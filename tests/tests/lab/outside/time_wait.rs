//! Ports of tc's source NAT that their endpoint has in TIME-WAIT.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fs_err as fs;
use topo_lb_tests::netns::NetNs;

use super::dialling::{
    client4, client6, close, dial, expect_no_more_than_dropped, own_networks, syns_sent_again,
};
use super::scene::idle;
use super::sources::{SEEN, bound, put_seen, wait_for_udp};

/// Clients, and the connections of each: so many that of ports chosen at random more than a thousand would be in
/// TIME-WAIT (18,000 ports, two families of 7,168 connections).
const CLIENTS: u16 = 64;
const EACH: u32 = 112;
/// Clients of each family that dial at the same time.
const AT_ONCE: usize = 4;
/// How long all clients take for a connection each: 600 connections a second, by which an agent has looked for what is
/// over several times.
const ROUND: Duration = Duration::from_millis(107);

/// Sockets in TIME-WAIT of both families.
fn in_time_wait(netns: &NetNs) -> Result<u32> {
    let text = netns.run(|| Ok(fs::read_to_string("/proc/thread-self/net/sockstat")?))?;
    let tcp = text.lines().find_map(|line| line.strip_prefix("TCP: ")).context("no TCP")?;
    let count = tcp.split(' ').skip_while(|word| *word != "tw").nth(1).context("no tw")?;
    Ok(count.parse()?)
}

/// Has each of these addresses connect so often, one connection after the other, and wait for the server's end.
fn come(from: &[IpAddr], to: SocketAddr) -> Result<()> {
    let start = Instant::now();
    for round in 1..=EACH {
        for address in from {
            let stream = dial(*address, to)?;
            std::io::copy(&mut &stream, &mut std::io::sink()).context("no FIN of the server")?;
            close(stream)?;
        }
        thread::sleep((start + ROUND * round).saturating_duration_since(Instant::now()));
    }
    Ok(())
}

#[test]
fn ports_in_time_wait_at_the_endpoint_are_not_taken_again() -> Result<()> {
    idle(|scene| {
        // Closed connections have a quarter of this room, and there are more of them than in the table of other tests.
        scene.agent.set("--max-connections", "65536");
        scene.agent.resume()?;
        own_networks(scene)?;
        put_seen(scene, "b")?;
        for to in SEEN {
            wait_for_udp(scene, "b", to.parse()?)?;
        }
        let server = bound(scene, "b", TcpListener::bind)?;
        server.set_nonblocking(true)?;
        let (fabric, pod) = (scene.cluster.fabric(), scene.cluster.pod("b")?.netns());
        let done = AtomicBool::new(false);
        let dropped = scene.cluster.dropped_in_queues()?;
        let again = || Ok::<_, anyhow::Error>(syns_sent_again(fabric)? + syns_sent_again(pod)?);
        let before = again()?;
        thread::scope(|scope| {
            // The server closes first, at once.
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    if server.accept().is_err() {
                        thread::sleep(Duration::from_micros(200));
                    }
                }
            });
            let result = fabric.run(|| {
                let clients = [|number| client4(number), |number| client6(number, 1)];
                thread::scope(|scope| {
                    let mut all = Vec::new();
                    for (client, to) in clients.into_iter().zip(SEEN) {
                        let from: Vec<_> = (0..CLIENTS).map(client).collect();
                        for part in from.chunks(from.len() / AT_ONCE) {
                            let (part, to) = (part.to_vec(), to.parse()?);
                            all.push(scope.spawn(move || come(&part, to)));
                        }
                    }
                    all.into_iter().try_for_each(|one| one.join().expect("no panic"))
                })
            });
            done.store(true, Ordering::Relaxed);
            result
        })?;
        let again = again()? - before;
        let waiting = in_time_wait(pod)?;
        println!("{waiting} in TIME-WAIT, {again} SYNs and SYN-ACKs sent again");
        let connections = 2 * u32::from(CLIENTS) * EACH;
        // What shows that the server was the first to close: they stay for 60 s.
        ensure!(waiting > connections / 10 * 9, "{waiting} of {connections} are in TIME-WAIT");
        expect_no_more_than_dropped(scene.cluster, again, dropped)
    })
}

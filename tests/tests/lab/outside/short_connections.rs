//! Short connections without end, beside idle ones that stay open.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use topo_lb_tests::netns::NetNs;
use topo_lb_tests::scene::{ALL, FOLLOWS};

use super::dialling::{ask, client4, client6, close, dial, own_networks, syns_sent_again};
use super::scene::{OUTSIDE, WEB, idle, packets};

/// So many addresses dial in turns.
const ADDRESSES: [u16; 4] = [1, 8, 64, 1_024];
/// Threads that dial.
const AT_ONCE: usize = 4;
/// The node port of `web` for each family.
const TO: [&str; 2] = [WEB[0].1, WEB[3].1];

/// How much happens.
struct Size {
    /// `--max-connections`; none: the default.
    room: Option<u32>,
    /// Connections that are open and idle, half of them of each family.
    idle: usize,
    /// Short connections of each number of addresses, in each family.
    short: usize,
}

/// The address of a client: IPv6 ones each have a network of their own.
fn client(is_v6: bool, number: u16) -> IpAddr {
    if is_v6 { client6(number, 1) } else { client4(number) }
}

/// Opens connections and closes them again, by several threads; each connection is answered.
fn come_and_go(fabric: &NetNs, is_v6: bool, addresses: u16, connections: usize) -> Result<()> {
    let to: SocketAddr = TO[usize::from(is_v6)].parse()?;
    fabric.run(|| {
        thread::scope(|scope| {
            let all: Vec<_> = (0..AT_ONCE)
                .map(|first| {
                    let numbers = (first..connections).step_by(AT_ONCE);
                    scope.spawn(move || {
                        numbers.into_iter().try_for_each(|number| {
                            // Each thread has all addresses in turns.
                            let number = u16::try_from(number / AT_ONCE % usize::from(addresses))?;
                            close(dial(client(is_v6, number), to)?)
                        })
                    })
                })
                .collect();
            all.into_iter().try_for_each(|one| one.join().expect("no panic"))
        })
    })
}

fn run(size: &Size) -> Result<()> {
    idle(|scene| {
        match size.room {
            Some(room) => scene.agent.set("--max-connections", room.to_string()),
            None => scene.agent.unset("--max-connections"),
        }
        scene.agent.resume()?;
        own_networks(scene)?;
        let fabric = scene.cluster.fabric();
        let mut guest = scene.cluster.guest("outside", fabric)?;
        for place in [0, 3] {
            guest.wait_for(WEB[place].0, WEB[place].1.parse()?, &ALL, FOLLOWS)?;
        }
        let mut held: Vec<(TcpStream, String)> = Vec::new();
        fabric.run(|| {
            for number in 0..size.idle {
                let place = number % 2;
                let stream = dial(OUTSIDE[place].parse()?, TO[place].parse()?)?;
                let pod = ask(&stream)?;
                held.push((stream, pod));
            }
            Ok(())
        })?;
        for addresses in ADDRESSES {
            for is_v6 in [false, true] {
                let (start, again) = (Instant::now(), syns_sent_again(fabric)?);
                come_and_go(fabric, is_v6, addresses, size.short)?;
                let again = syns_sent_again(fabric)? - again;
                let (family, took) = (if is_v6 { "IPv6" } else { "IPv4" }, start.elapsed());
                let short = size.short;
                println!("{addresses} {family} addresses: {short} in {took:?}, {again} SYNs again");
            }
            for (stream, pod) in &held {
                let now = ask(stream).with_context(|| format!("after {addresses} addresses"))?;
                ensure!(now == *pod, "{pod} answered, and then {now}");
            }
        }
        for outcome in ["limited", "table_full", "no_port"] {
            let refused = packets(scene, outcome)?;
            ensure!(refused == 0, "{outcome}: {refused}");
        }
        Ok(())
    })
}

#[test]
fn short_connections_of_any_number_of_addresses_leave_idle_ones_open() -> Result<()> {
    run(&Size { room: Some(4_096), idle: 64, short: 6_250 })
}

#[test]
#[ignore = "takes ten minutes: the same at full size"]
fn so_they_do_in_a_table_of_the_default_size() -> Result<()> {
    run(&Size { room: None, idle: 1_000, short: 200_000 })
}

//! Half-open TCP connections from one source outside of the node, while other clients outside use the
//! same node port.

use std::fmt;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::packets::Outcome;

use crate::binary::row;
use crate::card;
use crate::client::Client;
use crate::flood::flood;
use crate::frame::{Tcp, tcp};
use crate::requirements;
use crate::scene::{ALL, FOLLOWS, Scene, prepared};
use crate::traffic::{Socket, Tally, Via};

/// The node ports of `web` at the agent's node, for TCP and UDP.
const WEB: [(Via, &str); 4] = [
    (Via::Http, "172.30.0.2:30080"),
    (Via::Http, "[fd00:172::2]:30080"),
    (Via::UdpConnected, "172.30.0.2:30053"),
    (Via::UdpConnected, "[fd00:172::2]:30053"),
];
/// The source of the flood: answers to it are dropped.
const SOURCE: [u8; 4] = [192, 0, 2, 66];
/// The flood's ports; each SYN opens another connection.
const PORTS: std::ops::Range<u16> = 1_024..65_000;
/// Ethernet addresses of the node's uplink, and of the fabric.
const NODE: [u8; 6] = [2, 0x54, 0x4c, 1, 1, 0];
const FABRIC: [u8; 6] = [2, 0x54, 0x4c, 1, 254, 0];
/// How long one part of the flood takes.
const PART: Duration = Duration::from_millis(500);
/// Connections of the others, established before the flood.
const HELD: usize = 60;
/// Between the calls of the others, which are one client: it has a quota of a quarter of the connections,
/// for which each flow of datagrams counts for two minutes.
const PAUSE: Duration = Duration::from_millis(50);

/// What became of the flood, and of the others.
#[derive(Clone, Debug)]
pub struct Flooded {
    /// SYNs sent.
    pub syns: u64,
    /// Packets of anybody that were refused for want of room.
    pub refused: u64,
    /// Answers on connections that were established before.
    pub kept: u64,
    /// Questions on these that had no answer while the flood went on.
    pub unanswered: u64,
    /// New sockets of the others, and what became of them.
    pub new: Tally,
    /// Packets of anybody that full queues of the kernel have dropped before a program saw them.
    pub dropped_in_queues: u64,
}

impl Flooded {
    /// Questions of the others without an answer.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.unanswered + u64::from(self.new.requests - self.new.answered())
    }
}

impl fmt::Display for Flooded {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} half-open SYNs, {} packets refused; others had {} answers on open connections, and {} of \
             {} new sockets; {} questions were lost, the longest took {} µs; full queues dropped {} packets",
            self.syns,
            self.refused,
            self.kept,
            self.new.answered(),
            self.new.requests,
            self.lost(),
            self.new.longest_us,
            self.dropped_in_queues
        )
    }
}

/// Floods a node port with at least so many SYNs.
///
/// # Errors
/// An established connection of another client does not outlive it, a question has no answer although no queue was full,
/// or the lab cannot be made.
pub fn run(syns: u64) -> Result<Flooded> {
    requirements::command("nft", "nftables")?;
    let mut flooded = None;
    prepared(
        |manifests| {
            let Ok(web) = manifests.get("Service", "web") else { return };
            web["spec"]["type"] = "NodePort".into();
            web["spec"]["ports"][0]["nodePort"] = 30_080.into();
            web["spec"]["ports"][1]["nodePort"] = 30_053.into();
        },
        |scene| {
            scene.agent.set("--kube-proxy-replacement", "");
            // So few that the flood would fill the table of the others, if it were in it.
            scene.agent.set("--max-connections", "4096");
            scene.agent.resume()?;
            flooded = Some(within(scene, syns)?);
            Ok(())
        },
    )?;
    flooded.context("the lab has run")
}

fn within(scene: &Scene<'_>, syns: u64) -> Result<Flooded> {
    let fabric = scene.cluster.fabric();
    let [a, b, c, d] = SOURCE;
    fabric.ip(&[format!("route add blackhole {a}.{b}.{c}.{d}/32")])?;
    let to: SocketAddr = WEB[0].1.parse()?;
    let frame = |port: u16| {
        let mut frame = tcp((SOURCE, port).into(), to, Tcp::Syn(fastrand::u32(..)));
        frame[..6].copy_from_slice(&NODE);
        frame[6..12].copy_from_slice(&FABRIC);
        frame
    };
    let frames: Vec<Vec<u8>> = PORTS.map(frame).collect();

    let mut client = scene.cluster.guest("outside", fabric)?;
    let mut held = Vec::new();
    for (via, address) in WEB {
        client.wait_for(via, address.parse()?, &ALL, FOLLOWS)?;
    }
    for (via, address) in WEB.into_iter().cycle().take(HELD) {
        let socket = client.open(via, address.parse()?)??;
        held.push((socket, client.ask(socket, None)??.pod));
    }
    let (refused, dropped) = (refused(scene)?, scene.cluster.dropped_in_queues()?);
    let (mut new, mut kept, mut asked) = (Tally::default(), 0, 0);
    let sent = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while sent < syns {
                sent += flood(fabric, "node1", &frames, PART)?;
            }
            Ok::<_, anyhow::Error>(sent)
        });
        while !sender.is_finished() {
            kept += ask(&mut client, &held)?;
            asked += held.len() as u64;
            thread::sleep(PAUSE);
            for (via, address) in WEB {
                new.add(&client.call(via, address.parse()?, 5)?);
            }
        }
        sender.join().expect("a flood does not panic")
    })?;
    let unanswered = asked - kept;
    // Only the ring of a veth device with a program of XDP, of 256 frames, is that full.
    ensure!(
        unanswered == 0 || card::is_asked(),
        "{unanswered} of {asked} questions without an answer"
    );
    let last = ask(&mut client, &held)?;
    ensure!(last == held.len() as u64, "{last} of {} open connections outlived it", held.len());
    let flooded = Flooded {
        syns: sent,
        refused: self::refused(scene)? - refused,
        kept: kept + last,
        unanswered,
        new,
        dropped_in_queues: scene.cluster.dropped_in_queues()? - dropped,
    };
    // The kernel's queue is everybody's: what it drops, no program has seen.
    ensure!(flooded.lost() <= flooded.dropped_in_queues, "{flooded}: {}", flooded.new);
    ensure!(flooded.refused == 0, "{flooded}");
    ensure!(flooded.new.requests > 0, "the others did nothing: {flooded}");
    Ok(flooded)
}

/// Asks open connections: the same pod must answer. Returns how many answers there were.
fn ask(client: &mut Client, held: &[(Socket, String)]) -> Result<u64> {
    let mut answers = 0;
    for (socket, pod) in held {
        if let Ok(reply) = client.ask(*socket, None)? {
            ensure!(reply.pod == *pod, "{pod} answered, and then {}", reply.pod);
            answers += 1;
        }
    }
    Ok(answers)
}

/// How many packets were dropped because their client had too much, or the table was full.
fn refused(scene: &Scene<'_>) -> Result<u64> {
    let listed = scene.agent.list("hooks")?;
    let of = |hook| {
        let row = row(&listed["hooks"]["each"], "hook", hook)?;
        let counts = [Outcome::Limited, Outcome::TableFull].map(|outcome| {
            row["packets"][outcome.name()].as_u64().with_context(|| format!("{outcome:?} in {row}"))
        });
        counts.into_iter().sum::<Result<u64>>()
    };
    Ok(of("tc ingress")? + of("xdp")?)
}

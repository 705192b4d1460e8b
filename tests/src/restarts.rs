//! Restarts a node's agent repeatedly, while clients make connections and hold some open.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::client::Client;
use crate::manifest::service;
use crate::report::Report;
use crate::scene::{self, NOBODY4, NOBODY6, Scene, WEB4, WEB6, at, put_endpoints};
use crate::traffic::{Reply, Socket, Tally, Via};

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// After so many restarts.
    Restarts(u64),
    /// After so much time.
    Elapsed(Duration),
}

/// How an agent ends.
#[derive(Clone, Copy, Debug)]
enum End {
    /// SIGKILL while the agent is idle.
    Killed,
    /// SIGTERM.
    Stopped,
    /// SIGKILL just after a change: before the agent notices, while it writes, or afterwards.
    KilledInAChange,
    /// SIGKILL, and again during the next start.
    KilledInAStart,
    /// SIGTERM; the next agent has maps of other sizes.
    Resized,
    /// SIGKILL; the next agent has maps of other sizes, and is killed during its start.
    KilledInAResize,
    /// SIGTERM; the next agent finds a map under an earlier name, and is killed during its start.
    Upgraded,
}

const ENDS: [End; 7] = [
    End::Killed,
    End::Stopped,
    End::KilledInAChange,
    End::KilledInAStart,
    End::Resized,
    End::KilledInAResize,
    End::Upgraded,
];

/// So many restarts combine each end of the agent with each change of endpoints.
pub const EVERY_KIND: u64 = (ENDS.len() * SETS.len()) as u64;

/// The Service with changing endpoints, over TCP and UDP.
const MOVING: &str = "moving";
/// Its sets of endpoints, in turn.
const SETS: [&[&str]; 4] = [&["a", "b"], &["b", "c", "d"], &["d"], &["a", "b", "c", "d"]];

/// Runs in its own lab.
///
/// # Errors
/// The lab cannot be made, an agent does not start, or something is left behind. Errors of
/// connections are in the report.
pub fn run(until: Until) -> Result<Report> {
    let mut report = Report::default();
    scene::prepared(
        |manifests| {
            let both = [("http", 80, "TCP"), ("udp", 80, "UDP")];
            manifests.put(service(MOVING, &[NOBODY4, NOBODY6], &both, &[]));
        },
        |scene| {
            put_endpoints(&mut scene.manifests, scene.cluster, MOVING, SETS[SETS.len() - 1])?;
            scene.manifests.write()?;
            cut_short(scene, &mut report)?;
            scene.agent.resume()?;
            let mut held = Held::open(&mut scene.client)?;
            let mut callers = [
                (scene.cluster.pod("client")?.client()?, Via::Http, at(NOBODY4)?),
                // Unconnected sockets would fill the table of flows, which is not under test.
                (scene.cluster.pod("client")?.client()?, Via::UdpConnected, at(NOBODY6)?),
            ];
            let begun = Instant::now();
            while match until {
                Until::Restarts(restarts) => report.restarts < restarts,
                Until::Elapsed(time) => begun.elapsed() < time,
            } {
                round(scene, &mut callers, &mut report)?;
                held.check(&mut scene.client, &mut report)?;
            }
            Ok(())
        },
    )?;
    Ok(report)
}

/// Kills starts of the agent at various moments, from before anything is in the kernel. Connections
/// must be translated or untouched; none may fail.
fn cut_short(scene: &mut Scene<'_>, report: &mut Report) -> Result<()> {
    for milliseconds in (0..300).step_by(30) {
        scene.agent.launch()?;
        thread::sleep(Duration::from_millis(milliseconds));
        scene.agent.kill();
        let tally = scene.client.call(Via::Http, at(WEB4)?, 20)?;
        let allowed = BTreeSet::from(["untouched", "a", "b", "c", "d"]);
        judge(&tally, &allowed, End::KilledInAStart, report);
    }
    Ok(())
}

type Caller = (Client, Via, SocketAddr);

/// One change of endpoints and one restart under load.
fn round(scene: &mut Scene<'_>, callers: &mut [Caller; 2], report: &mut Report) -> Result<()> {
    let number = report.restarts as usize;
    let (old, new) = (SETS[(number + SETS.len() - 1) % SETS.len()], SETS[number % SETS.len()]);
    let end = ENDS[number / SETS.len() % ENDS.len()];
    // A different moment each time.
    let moment = Duration::from_millis(number as u64 * 37 % 300);
    let [(one, one_via, one_to), (two, two_via, two_to)] = callers;
    let (first, (second, ())) = one.call_during(*one_via, *one_to, || {
        two.call_during(*two_via, *two_to, || {
            scene.set_endpoints(MOVING, new)?;
            match end {
                End::Killed => {
                    scene.wait_for(Via::UdpConnected, at(NOBODY4)?, new)?;
                    scene.agent.kill();
                }
                End::KilledInAChange => {
                    thread::sleep(moment / 3);
                    scene.agent.kill();
                }
                End::KilledInAStart | End::KilledInAResize => scene.agent.kill(),
                End::Stopped | End::Resized | End::Upgraded => scene.agent.stop()?,
            }
            match end {
                End::Resized | End::KilledInAResize => resize(scene, number),
                End::Upgraded => {
                    let pins = scene.agent.pins();
                    fs::rename(pins.join("unprogrammed"), pins.join("left_out"))?;
                }
                _ => {}
            }
            if matches!(end, End::KilledInAStart | End::KilledInAResize | End::Upgraded) {
                scene.agent.launch()?;
                thread::sleep(moment);
                scene.agent.kill();
            }
            scene.agent.resume()?;
            ensure!(!scene.agent.pins().join("left_out").exists(), "an old name is left behind");
            scene.wait_for(Via::UdpConnected, at(NOBODY4)?, new)?;
            scene.wait_for(Via::Udp, at(NOBODY6)?, new)?;
            Ok(())
        })
    })?;
    let allowed: BTreeSet<&str> = old.iter().chain(new).copied().collect();
    for tally in [first, second] {
        judge(&tally, &allowed, end, report);
    }
    report.changes += 1;
    report.restarts += 1;
    Ok(())
}

/// Resizes maps that the agent writes, maps that the programs write, or both.
fn resize(scene: &mut Scene<'_>, number: usize) {
    let of = |modulus: usize, sizes: [&'static str; 2]| {
        sizes[usize::from(number.is_multiple_of(modulus))]
    };
    scene.agent.set("--max-services", of(2, ["600", "512"]));
    scene.agent.set("--max-flows", of(3, ["20000", "16384"]));
}

fn judge(tally: &Tally, allowed: &BTreeSet<&str>, end: End, report: &mut Report) {
    report.connections += u64::from(tally.requests);
    let wrong = tally.replies.iter().filter(|(pod, _)| !allowed.contains(pod.as_str()));
    let wrong: u64 = wrong.map(|(_, count)| u64::from(*count)).sum();
    let failed: u64 = tally.failures.iter().map(|(_, count)| u64::from(*count)).sum();
    report.wrong_endpoint += wrong;
    report.failed += failed;
    if wrong + failed > 0 {
        let restart = report.restarts + 1;
        report.describe(|| format!("restart {restart} ({end:?}), of {allowed:?}: {tally}"));
    }
}

/// Open sockets to a Service that does not change, with the first reply of each.
struct Held(Vec<(Socket, SocketAddr, Via, Reply)>);

impl Held {
    fn open(client: &mut Client) -> Result<Self> {
        let mut held = Vec::new();
        for to in [at(WEB4)?, at(WEB6)?] {
            for via in [Via::Http, Via::HttpMptcp, Via::UdpConnected, Via::Udp] {
                let socket = client.open(via, to)?;
                let socket = socket.ok().with_context(|| format!("no {via:?} to {to}"))?;
                let reply = client.ask(socket, (via == Via::Udp).then_some(to))?;
                let reply = reply.ok().with_context(|| format!("no answer by {via:?} of {to}"))?;
                ensure!(reply.peer == to, "{via:?} to {to}: the peer is {}", reply.peer);
                held.push((socket, to, via, reply));
            }
        }
        Ok(Self(held))
    }

    /// Checks that each socket still reaches the same pod with the same peer address.
    fn check(&mut self, client: &mut Client, report: &mut Report) -> Result<()> {
        for (socket, to, via, before) in &self.0 {
            let now = client.ask(*socket, (*via == Via::Udp).then_some(*to))?;
            let peer = if *via == Via::Udp { Ok(*to) } else { client.peer(*socket)? };
            if now.as_ref() != Ok(before) || peer != Ok(*to) {
                report.failed += 1;
                let restart = report.restarts;
                report.describe(|| {
                    format!("restart {restart}: {via:?} to {to}: {before:?}, {now:?} with {peer:?}")
                });
            }
        }
        Ok(())
    }
}

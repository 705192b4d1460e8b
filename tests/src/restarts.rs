//! Restarts a node's agent repeatedly, while clients make connections and hold some open.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use topo_lb_common::maps;

use crate::binary::Binary;
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
    /// SIGTERM; the next agent finds maps of another layout, and is killed during its start.
    Relaid,
}

const ENDS: [End; 7] = [
    End::Killed,
    End::Stopped,
    End::KilledInAChange,
    End::KilledInAStart,
    End::Resized,
    End::KilledInAResize,
    End::Relaid,
];

/// So many restarts combine each end of the agent with each change of endpoints.
pub const EVERY_KIND: u64 = (ENDS.len() * SETS.len()) as u64;

/// The version of an agent.
#[derive(Clone, Copy, Debug)]
enum Version {
    /// The last release.
    Last,
    /// The one under test.
    Current,
}

/// How each agent ends, and the version that starts then. After a start that is killed, the version
/// before it starts again. The first agent is the last release's.
const VERSIONS: [(End, Version); 13] = [
    (End::Killed, Version::Current),
    (End::Killed, Version::Last),
    (End::Stopped, Version::Current),
    (End::Stopped, Version::Last),
    (End::KilledInAChange, Version::Current),
    (End::KilledInAChange, Version::Last),
    (End::KilledInAStart, Version::Current),
    (End::KilledInAStart, Version::Current),
    (End::KilledInAStart, Version::Current),
    (End::Stopped, Version::Current),
    (End::KilledInAStart, Version::Last),
    (End::KilledInAStart, Version::Last),
    (End::KilledInAStart, Version::Last),
];

/// The restarts of [`run_upgrades`].
pub const UPGRADES: u64 = VERSIONS.len() as u64;

/// Who connects besides a pod of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    /// A client outside of the node, by a node port.
    Outside,
    /// A client whose packets tc translates on its device.
    Machine,
}

/// The node ports of `web` and [`MOVING`], for TCP, at the agent's node.
const WEB_PORT: &str = "172.30.0.2:30080";
const MOVING_PORT: &str = "172.30.0.2:30081";

/// The mark of a layout of pinned maps that no agent has.
const OTHER_LAYOUT: &str = "layout-0";

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
    let begun = Instant::now();
    play(Others::Outside, cut_short, |scene, restarts| {
        let is_over = match until {
            Until::Restarts(most) => restarts as u64 == most,
            Until::Elapsed(time) => begun.elapsed() >= time,
        };
        let end = ENDS[restarts / SETS.len() % ENDS.len()];
        (!is_over).then(|| (end, scene.binary.clone()))
    })
}

/// Starts the agent of the last release, upgrades it, and rolls it back, in turns, also with clients
/// whose packets tc translates.
///
/// # Errors
/// As for [`run`]. An agent of an older layout of maps does not start: then no rollback is possible.
pub fn run_upgrades(last_release: &Binary) -> Result<Report> {
    play(
        Others::Machine,
        |scene, _| {
            scene.agent.replace_binary(last_release.clone());
            Ok(())
        },
        |scene, restarts| {
            let (end, version) = VERSIONS.get(restarts)?;
            let binary = match version {
                Version::Last => last_release,
                Version::Current => &scene.binary,
            };
            Some((*end, binary.clone()))
        },
    )
}

/// Prepares a scene, starts its agent, and restarts it under load. `next` says how the agent ends
/// after so many restarts, and what starts then; none if these are enough.
fn play(
    others: Others,
    prepare: impl FnOnce(&mut Scene<'_>, &mut Report) -> Result<()>,
    mut next: impl FnMut(&Scene<'_>, usize) -> Option<(End, Binary)>,
) -> Result<Report> {
    let mut report = Report::default();
    scene::prepared(
        |manifests| {
            let both = [("http", 80, "TCP"), ("udp", 80, "UDP")];
            manifests.put(service(MOVING, &[NOBODY4, NOBODY6], &both, &[]));
            for (name, port) in [("web", 30_080), (MOVING, 30_081)] {
                if let Ok(service) = manifests.get("Service", name) {
                    service["spec"]["type"] = "NodePort".into();
                    service["spec"]["ports"][0]["nodePort"] = port.into();
                }
            }
        },
        |scene| {
            match others {
                Others::Outside => scene.agent.set("--kube-proxy-replacement", ""),
                Others::Machine => scene.agent.set("--tc-devices", "pod*"),
            }
            put_endpoints(&mut scene.manifests, scene.cluster, MOVING, SETS[SETS.len() - 1])?;
            scene.manifests.write()?;
            prepare(scene, &mut report)?;
            scene.agent.resume()?;
            let pod = || scene.cluster.pod("client")?.client();
            // Not the client's pod: a machine has an address of its own.
            let machine = || scene.cluster.machine("a");
            let vias = [Via::Http, Via::HttpMptcp, Via::UdpConnected, Via::Udp];
            let mut held = vec![Held::open(pod()?, &[at(WEB4)?, at(WEB6)?], &vias)?];
            let mut callers = vec![
                (pod()?, Via::Http, at(NOBODY4)?),
                // Unconnected sockets would fill the table of flows, which is not under test.
                (pod()?, Via::UdpConnected, at(NOBODY6)?),
            ];
            let outside = || scene.cluster.guest("outside", scene.cluster.fabric());
            match others {
                Others::Outside => {
                    held.push(Held::open(outside()?, &[WEB_PORT.parse()?], &[Via::Http])?);
                    callers.push((outside()?, Via::Http, MOVING_PORT.parse()?));
                }
                Others::Machine => {
                    held.push(Held::open(machine()?, &[at(WEB4)?, at(WEB6)?], &vias)?);
                    callers.push((machine()?, Via::Http, at(NOBODY4)?));
                }
            }
            while let Some((end, binary)) = next(scene, report.restarts as usize) {
                let before = scene.agent.replace_binary(binary);
                round(scene, end, &before, &mut callers, &mut report)?;
                for held in &mut held {
                    held.check(&mut report)?;
                }
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

/// One change of endpoints and one restart under load. After a start that is killed, the binary
/// `before` starts.
fn round(
    scene: &mut Scene<'_>,
    end: End,
    before: &Binary,
    callers: &mut [Caller],
    report: &mut Report,
) -> Result<()> {
    let number = report.restarts as usize;
    let (old, new) = (SETS[(number + SETS.len() - 1) % SETS.len()], SETS[number % SETS.len()]);
    // A different moment each time.
    let moment = Duration::from_millis(number as u64 * 113 % 300);
    let tallies = call_during(callers, &mut || {
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
            End::Stopped | End::Resized | End::Relaid => scene.agent.stop()?,
        }
        match end {
            End::Resized | End::KilledInAResize => resize(scene, number),
            End::Relaid => lay_out_otherwise(scene.agent.pins())?,
            _ => {}
        }
        if matches!(end, End::KilledInAStart | End::KilledInAResize | End::Relaid) {
            scene.agent.launch()?;
            thread::sleep(moment);
            scene.agent.kill();
            scene.agent.replace_binary(before.clone());
        }
        scene.agent.resume()?;
        for left in [OTHER_LAYOUT, "renewal"] {
            ensure!(!scene.agent.pins().join(left).exists(), "{left} is left behind");
        }
        scene.wait_for(Via::UdpConnected, at(NOBODY4)?, new)?;
        scene.wait_for(Via::Udp, at(NOBODY6)?, new)?;
        Ok(())
    })?;
    let allowed: BTreeSet<&str> = old.iter().chain(new).copied().collect();
    for tally in tallies {
        judge(&tally, &allowed, end, report);
    }
    report.changes += 1;
    report.restarts += 1;
    Ok(())
}

/// Has all callers call while `work` runs. Returns what each got.
fn call_during(callers: &mut [Caller], work: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Tally>> {
    let Some(((client, via, to), others)) = callers.split_first_mut() else {
        work()?;
        return Ok(Vec::new());
    };
    let (tally, mut tallies) = client.call_during(*via, *to, || call_during(others, work))?;
    tallies.push(tally);
    Ok(tallies)
}

/// Resizes maps that the agent writes, maps that the programs write, or both.
fn resize(scene: &mut Scene<'_>, number: usize) {
    let of = |modulus: usize, sizes: [&'static str; 2]| {
        sizes[usize::from(number.is_multiple_of(modulus))]
    };
    scene.agent.set("--max-services", of(2, ["600", "512"]));
    scene.agent.set("--max-flows", of(3, ["20000", "16384"]));
}

/// Makes the pins those of a layout before the agent's: by their mark, and by a map of another shape.
/// The attached programs go on with the map that they have.
fn lay_out_otherwise(pins: &Path) -> Result<()> {
    for entry in fs::read_dir(pins)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("layout-") {
            fs::remove_dir(entry.path())?;
        }
    }
    fs::create_dir(pins.join(OTHER_LAYOUT))?;
    let pin = pins.join(maps::AFFINITY4);
    fs::remove_file(&pin)?;
    let mut create = Command::new("bpftool");
    create.args(["map", "create"]).arg(&pin);
    create.args("type lru_hash key 4 value 12 entries 64 name affinity4".split(' '));
    let output = create.output()?;
    ensure!(output.status.success(), "bpftool: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
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

/// A client with open sockets to a Service that does not change, and the first reply of each.
struct Held {
    client: Client,
    sockets: Vec<(Socket, SocketAddr, Via, Reply)>,
}

impl Held {
    fn open(mut client: Client, targets: &[SocketAddr], vias: &[Via]) -> Result<Self> {
        let mut sockets = Vec::new();
        for &to in targets {
            for &via in vias {
                let socket = client.open(via, to)?;
                let socket = socket.ok().with_context(|| format!("no {via:?} to {to}"))?;
                let reply = client.ask(socket, (via == Via::Udp).then_some(to))?;
                let reply = reply.ok().with_context(|| format!("no answer by {via:?} of {to}"))?;
                ensure!(reply.peer == to, "{via:?} to {to}: the peer is {}", reply.peer);
                sockets.push((socket, to, via, reply));
            }
        }
        Ok(Self { client, sockets })
    }

    /// Checks that each socket still reaches the same pod with the same peer address.
    fn check(&mut self, report: &mut Report) -> Result<()> {
        let Self { client, sockets } = self;
        for (socket, to, via, before) in sockets {
            let now = client.ask(*socket, (*via == Via::Udp).then_some(*to))?;
            let peer = if *via == Via::Udp { Ok(*to) } else { client.peer(*socket)? };
            if now.as_ref() != Ok(&*before) || peer != Ok(*to) {
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

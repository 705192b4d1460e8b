//! The command `try`: topo-lb on this machine alone, with real connections.
//!
//! Two zones with a node each are two cgroups with an agent each. The Pods' servers are in this process,
//! and the connections are made by it, from one node's cgroup and then from the other's. Everything
//! is in namespaces of this process (`sandbox`), so it ends with it.

mod node;
mod sandbox;
mod table;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

pub use table::summary;

use node::Node;
use sandbox::Sandbox;
use world::{FAR, NEAR, World};

/// Connections per check.
const CONNECTIONS: u32 = 100;
/// Connections of a look whether the agents have followed a change. With two zones, 20 miss one with a
/// probability of 1 in 500,000.
const LOOK: u32 = 20;
/// How long agents may take to follow a change: milliseconds, but the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(15);
/// The time between two looks.
const PERIOD: Duration = Duration::from_millis(20);

/// What was tried.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Whether all connections went where they should.
    pub ok: bool,
    /// In the order of execution.
    pub checks: Vec<Check>,
}

/// The connections from one zone, under one policy.
#[derive(Debug, Serialize)]
pub struct Check {
    /// What the Service says, or what has happened to its Pods.
    pub about: &'static str,
    /// The zone of the client.
    pub from: &'static str,
    /// Answers by the zone of the Pod that gave them.
    pub answers: BTreeMap<&'static str, u32>,
    /// How many connections were refused.
    pub refused: u32,
    /// The zones whose Pods should answer; none: connections should be refused.
    pub expected: Vec<&'static str>,
    /// Whether they did, and no others.
    pub ok: bool,
}

impl Check {
    fn new(about: &'static str, from: &'static str, expected: &[&'static str]) -> Self {
        let expected = expected.to_vec();
        Self { about, from, answers: BTreeMap::new(), refused: 0, expected, ok: false }
    }

    fn judge(mut self) -> Self {
        let has_refused = self.refused > 0;
        self.ok = self.answers.keys().eq(&self.expected) && has_refused == self.expected.is_empty();
        self
    }
}

/// A change of the world, and who answers the clients of each zone after it.
struct Chapter {
    about: &'static str,
    change: fn(&mut World),
    from_near: &'static [&'static str],
    from_far: &'static [&'static str],
}

const CHAPTERS: [Chapter; 4] = [
    Chapter { about: "no policy", change: |_| (), from_near: &[NEAR, FAR], from_far: &[NEAR, FAR] },
    Chapter {
        about: "topo-lb.io/topology-keys: topology.kubernetes.io/zone, *",
        change: |world| world.keys = Some("topology.kubernetes.io/zone, *"),
        from_near: &[NEAR],
        from_far: &[FAR],
    },
    Chapter {
        about: "the same, and no Pod of zone-a is ready",
        change: |world| world.is_near_ready = false,
        from_near: &[FAR],
        from_far: &[FAR],
    },
    Chapter {
        about: "topo-lb.io/topology-keys: topology.kubernetes.io/zone (strict)",
        change: |world| world.keys = Some("topology.kubernetes.io/zone"),
        from_near: &[],
        from_far: &[FAR],
    },
];

/// Tries it. Calls `show` with each part of the story for people. Call it before other threads start.
///
/// # Errors
/// This machine cannot run topo-lb, an agent fails, or a signal ends it; not for a check that fails.
pub fn run(colour: bool, show: impl FnMut(&str) -> anyhow::Result<()>) -> anyhow::Result<Report> {
    let sandbox = Sandbox::enter()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let report = runtime.context("cannot start the asynchronous runtime")?.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut hang_up = signal(SignalKind::hangup())?;
        tokio::select! {
            report = tell(&sandbox, colour, show) => report,
            _ = interrupt.recv() => Err(Interrupted(130).into()),
            _ = terminate.recv() => Err(Interrupted(143).into()),
            _ = hang_up.recv() => Err(Interrupted(129).into()),
        }
    });
    match (report, sandbox.leave()) {
        (report, Ok(())) => report,
        (Ok(_), Err(left)) => Err(left),
        (Err(error), Err(left)) => Err(error.context(format!("{left:#}"))),
    }
}

/// A signal has ended it; the exit code is 128 + its number, as in shells.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted(pub u8);

async fn tell(
    sandbox: &Sandbox,
    colour: bool,
    mut show: impl FnMut(&str) -> anyhow::Result<()>,
) -> anyhow::Result<Report> {
    let mut world = World::start(sandbox.folder()).await?;
    world.write()?;
    let mut nodes = Vec::new();
    for zone in [NEAR, FAR] {
        nodes.push(Node::start(sandbox, zone, world.manifests())?);
    }
    for node in &mut nodes {
        node.wait_until_ready().await?;
    }
    show(&table::opening())?;
    let mut report = Report::default();
    for chapter in CHAPTERS {
        (chapter.change)(&mut world);
        world.write()?;
        let mut checks = Vec::new();
        for (node, expected) in nodes.iter().zip([chapter.from_near, chapter.from_far]) {
            let check = || Check::new(chapter.about, node.zone(), expected);
            let begun = Instant::now();
            while !node.call(sandbox, LOOK, check()).await?.ok && begun.elapsed() < PATIENCE {
                sleep(PERIOD).await;
            }
            checks.push(node.call(sandbox, CONNECTIONS, check()).await?);
        }
        show(&table::chapter(chapter.about, &checks, &world.explained(NEAR)?, colour))?;
        report.checks.extend(checks);
    }
    report.ok = report.checks.iter().all(|check| check.ok);
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_ok_only_if_exactly_the_expected_zones_answered() {
        let judged = |answers: &[(&'static str, u32)], refused, expected: &[&'static str]| {
            let mut check = Check::new("", NEAR, expected);
            (check.answers, check.refused) = (answers.iter().copied().collect(), refused);
            check.judge().ok
        };
        assert!(judged(&[(NEAR, 100)], 0, &[NEAR]));
        assert!(judged(&[(NEAR, 40), (FAR, 60)], 0, &[NEAR, FAR]));
        assert!(judged(&[], 100, &[]));
        assert!(!judged(&[(NEAR, 99), (FAR, 1)], 0, &[NEAR]), "one left the zone");
        assert!(!judged(&[(NEAR, 99)], 1, &[NEAR]), "one was refused");
        assert!(!judged(&[(NEAR, 1)], 99, &[]), "one was answered");
        assert!(!judged(&[(NEAR, 100)], 0, &[NEAR, FAR]), "a zone got none");
    }
}

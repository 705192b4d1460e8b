//! A test in a lab: what it needs made before, and nothing left behind after.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cluster::{Cluster, NodePlan};

/// Makes a cluster, runs `body` in it, removes it, and proves that nothing is left. Where `body`
/// fails, what the agents have logged is printed before it goes.
///
/// # Errors
/// The cluster cannot be made, `body` fails, or something is left behind.
pub fn within(plan: &[NodePlan<'_>], body: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
    let cluster = Cluster::make(plan)?;
    // The cluster is only removed after a panic.
    let outcome = catch_unwind(AssertUnwindSafe(|| body(&cluster)));
    if !matches!(outcome, Ok(Ok(()))) {
        print_logs(&cluster);
    }
    let removal = cluster.remove();
    match outcome {
        Ok(outcome) => outcome.and(removal),
        Err(panic) => resume_unwind(panic),
    }
}

/// The name of a scenario, and what it does.
pub type Scenario<T> = (&'static str, fn(&mut T) -> Result<()>);

/// Plays scenarios on one stage, which `begin` sets anew before each. The others are played where one
/// fails.
///
/// # Errors
/// Scenarios fail: they are named, each with its error.
pub fn play_all<T>(
    stage: &mut T,
    begin: impl Fn(&mut T) -> Result<()>,
    scenarios: &[Scenario<T>],
) -> Result<()> {
    let mut failed = Vec::new();
    for (name, scenario) in scenarios {
        let start = Instant::now();
        let outcome = begin(stage).and_then(|()| scenario(stage));
        eprintln!("{name}: {:.1} s", start.elapsed().as_secs_f64());
        failed.extend(outcome.err().map(|error| format!("{name}: {error:#}")));
    }
    ensure!(failed.is_empty(), "{}", failed.join("\n"));
    Ok(())
}

fn print_logs(cluster: &Cluster) {
    for entry in fs::read_dir(cluster.folder()).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "log" || extension == "end") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            eprintln!("--- {}\n{text}", path.display());
        }
    }
}

//! Runs a test in a lab, and checks that nothing is left afterwards.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::cluster::Cluster;
use crate::node::NodePlan;

/// Makes a cluster, runs `body` in it, removes it, and checks that nothing is left. Prints the
/// agents' logs if `body` fails.
pub fn within(plan: &[NodePlan<'_>], body: impl FnOnce(&Cluster) -> Result<()>) -> Result<()> {
    let cluster = Cluster::make(plan)?;
    // After a panic the cluster is only removed.
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

/// A scenario: name and function.
pub type Scenario<T> = (&'static str, fn(&mut T) -> Result<()>);

/// Runs scenarios on one stage; `begin` resets it before each. Continues after a failed scenario.
///
/// # Errors
/// Scenarios fail: the error names each with its error.
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

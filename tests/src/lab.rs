//! A test in a lab: what it needs made before, and nothing left behind after.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use anyhow::Result;

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

fn print_logs(cluster: &Cluster) {
    for entry in fs::read_dir(cluster.folder()).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|extension| extension == "log" || extension == "end") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            eprintln!("--- {}\n{text}", path.display());
        }
    }
}

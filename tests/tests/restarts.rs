//! The agent may end and restart at any moment: connections are not affected.

use anyhow::{Result, ensure};
use topo_lb_tests::restarts::{self, Until};

#[test]
fn no_connection_notices_that_the_agent_is_killed_stopped_and_started() -> Result<()> {
    // `cargo xtask soak` runs this for a given time.
    let report = restarts::run(Until::Restarts(restarts::EVERY_KIND))?;
    println!("{} connections, {} changes", report.connections, report.changes);
    ensure!(report.is_ok() && report.restarts == restarts::EVERY_KIND, "{report:#?}");
    ensure!(report.connections > 100 * report.restarts, "{report:#?}");
    Ok(())
}

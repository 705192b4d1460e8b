//! The agent may end at any moment, and come back at any other: connections do not notice.

use anyhow::{Result, ensure};
use topo_lb_tests::restarts::{self, Until};

#[test]
fn no_connection_notices_that_the_agent_is_killed_stopped_and_started_a_hundred_times() -> Result<()>
{
    let report = restarts::run(Until::Restarts(100), |_| ())?;
    println!("{} connections, {} changes", report.connections, report.changes);
    ensure!(report.is_ok() && report.restarts == 100, "{report:#?}");
    ensure!(report.connections > 10_000, "{report:#?}");
    Ok(())
}

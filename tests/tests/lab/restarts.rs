//! The agent may end and restart at any moment: connections are not affected.

use anyhow::{Result, ensure};
use topo_lb_tests::binary::Binary;
use topo_lb_tests::requirements;
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

/// `cargo xtask test` names the last release's agent. If there is none, its summary says so.
#[test]
fn no_connection_notices_an_upgrade_from_the_last_release_or_back() -> Result<()> {
    let Some(last_release) = requirements::last_release()? else {
        println!("not run: TOPO_LB_LAST_RELEASE_AGENT does not name the last release's agent");
        return Ok(());
    };
    let report = restarts::run_upgrades(&Binary::new(last_release))?;
    println!("{} connections, {} changes", report.connections, report.changes);
    ensure!(report.is_ok() && report.restarts == restarts::UPGRADES, "{report:#?}");
    ensure!(report.connections > 100 * report.restarts, "{report:#?}");
    Ok(())
}

//! No connection sees a partial change.

use anyhow::{Result, ensure};
use topo_lb_tests::stress;

/// `cargo xtask soak` runs this for a given time.
const SECONDS: u64 = 6;

fn stress(outside: bool) -> Result<()> {
    let report = stress::run(SECONDS, 1, outside)?;
    println!(
        "{} connections, {} changes of Services, {} rightly not translated",
        report.connections, report.changes, report.not_translated
    );
    ensure!(report.is_ok(), "{report:#?}");
    ensure!(report.not_translated > 0 && report.not_translated < report.connections, "{report:?}");
    Ok(())
}

#[test]
fn every_connection_lands_on_an_endpoint_that_its_service_has_just_then() -> Result<()> {
    stress(false)
}

#[test]
fn so_does_every_connection_from_outside() -> Result<()> {
    stress(true)
}

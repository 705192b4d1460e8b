//! No program reads a record that is half written, or another Service's.

use std::time::Duration;

use anyhow::{Result, ensure};
use topo_lb_tests::reads::{Reuse, Until, run};
use topo_lb_tests::wait::{PATIENCE, patient};

/// Some seconds of a real machine; an emulated one makes as many as it can. `cargo xtask soak` makes
/// more.
const READS: u64 = 40_000_000;
const ELAPSED: Duration = Duration::from_secs(2);

#[test]
fn every_read_is_of_one_generation_of_its_service() -> Result<()> {
    let outcome =
        run(Reuse::AfterGrace, Until { elapsed: patient(ELAPSED), reads: READS, wrong: false })?;
    println!("{outcome}");
    ensure!(outcome.wrong() == 0, "{outcome}");
    Ok(())
}

#[test]
fn a_record_that_is_used_again_at_once_is_read_torn() -> Result<()> {
    let elapsed = patient(PATIENCE);
    let outcome = run(Reuse::AtOnce, Until { elapsed, reads: u64::MAX, wrong: true })?;
    println!("{outcome}");
    ensure!(outcome.reads.wrong > 0, "the stress finds no torn read: {outcome}");
    Ok(())
}

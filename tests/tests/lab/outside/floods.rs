//! One client outside opens connections without end, and the others lose nothing.

use anyhow::Result;
use topo_lb_tests::half_open;

/// `cargo xtask soak` sends ten million.
const SYNS: u64 = 300_000;

#[test]
fn connections_of_others_outlive_a_flood_of_half_open_ones_from_one_source() -> Result<()> {
    println!("{}", half_open::run(SYNS)?);
    Ok(())
}

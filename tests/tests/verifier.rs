//! The kernel's verifier takes every program, and is not near its limit.

use anyhow::{Result, ensure};
use topo_lb_tests::verifier::{LIMIT, instructions};

/// Growth is noticed before a kernel refuses it.
const ENOUGH: u32 = LIMIT / 10 * 9;

#[test]
fn every_program_is_far_from_the_verifier_s_limit() -> Result<()> {
    let programs = instructions()?;
    ensure!(programs.len() == 10, "{programs:?}");
    println!();
    for (program, count) in &programs {
        // `cargo xtask test` reads these lines.
        println!("verified {program} {count}");
    }
    for (program, count) in programs {
        ensure!(
            count <= ENOUGH,
            "the verifier looks at {count} instructions of {program}, and refuses more than \
             {LIMIT}: make its paths fewer before it grows"
        );
    }
    Ok(())
}

//! The kernel's verifier accepts every program, and none is near its limit.

use anyhow::{Result, ensure};
use topo_lb_tests::verifier::{LIMIT, counts};

/// Detects growth before a kernel refuses a program.
const ENOUGH: u32 = LIMIT / 10 * 9;

#[test]
fn every_program_is_far_from_the_verifier_s_limit() -> Result<()> {
    let programs = counts()?;
    ensure!(programs.len() == 10, "{programs:?}");
    println!();
    for (program, count) in &programs {
        // `cargo xtask test` reads these lines.
        println!("verified {program} instructions {}", count.instructions);
        println!("verified {program} states {}", count.states);
        println!("verified {program} peak-states {}", count.peak_states);
    }
    for (program, count) in programs {
        let count = count.instructions;
        ensure!(
            count <= ENOUGH,
            "the verifier looks at {count} instructions of {program}, and refuses more than \
             {LIMIT}: make its paths fewer before it grows"
        );
    }
    Ok(())
}

//! The first process of a virtual machine that `cargo xtask test --kernel` boots: readies the
//! kernel, runs suites, says on the console what became of them, and switches the machine off.
//!
//! What it says to xtask stands on lines that begin with `@guest`; all else is the suites' own
//! output. The last of these lines begins with `@guest end`, and is there only when everything has
//! run: a machine that panics switches itself off, too.

mod kernel;
mod plan;
mod suites;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};

use plan::Plan;

fn main() -> ExitCode {
    // Run by hand it would mount, and switch this machine off.
    if std::process::id() != 1 {
        eprintln!("guest: the first process of a virtual machine, started by cargo xtask test");
        return ExitCode::FAILURE;
    }
    if let Err(error) = work() {
        say(&format!("trouble {error:#}"));
    }
    kernel::switch_off()
}

fn work() -> Result<()> {
    let plan = Plan::read()?;
    kernel::mount_everything()?;
    say(&format!("booted {}", kernel::release()));
    kernel::load_modules(&plan.modules)?;
    kernel::bring_up_loopback()?;
    let has_mptcp = kernel::has_mptcp();
    let mut failed = 0;
    for suite in &plan.suites {
        failed += u32::from(!suites::run(suite, &plan.environment, has_mptcp)?);
    }
    let count = u32::try_from(plan.suites.len()).context("fewer suites")?;
    ensure!(count > 0, "the plan has no suite");
    say(&format!("end {} passed {failed} failed", count - failed));
    Ok(())
}

/// A line for xtask. A suite may have left one unfinished.
fn say(text: &str) {
    println!("\n@guest {text}");
}
